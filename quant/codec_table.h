// The table of codecs: one row a kind, with its name, its defaults, its options and the size of its records.
// A new codec is its kernels (docs/add-a-codec.md) and one row in codec_spec.cc. Internal to quant.
#pragma once

#include <span>

#include "quant/codec.h"

namespace lpsgd {

/// A bucket of m values takes 4*scales bytes and ceil(m*bits/32) words; without buckets a value takes `bits`.
struct CodecSize {
  std::int64_t scales = 0, bits = 32;
};

struct CodecRow {
  CodecSpec::Kind kind;
  const char* name;
  bool bucketed;
  bool columns;                              // `bucket: column` is allowed
  bool error_feedback;                       // by default
  std::int64_t (*bucket)(const CodecSpec&);  // default of a bucketed codec
  CodecSize (*size)(const CodecSpec&);
  void (*options)(config::Visitor&, CodecSpec&);  // keys of its own, beside bucket and error_feedback
};

std::span<const CodecRow> codec_table();
const CodecRow& codec_row(CodecSpec::Kind kind);

}  // namespace lpsgd
