// The table of codecs: for each kind its defaults, its options, the size of its records and its kernels. A
// codec is one file in quant/codecs and one line in codec_table.cc (docs/add-a-codec.md). Internal to quant.
#pragma once

#include <limits>
#include <optional>
#include <span>
#include <string>

#include "quant/codec.h"
#include "quant/cpu_codec.h"

namespace lpsgd {

/// An option that cannot go with the others.
struct OptionConflict {
  const char* key;
  std::string message;
};

/// What the table says of a kind; its file gives it.
struct CodecRow {
  bool bucketed = true;         // values share scales; otherwise buckets of 64 are the unit of striping alone
  bool columns = false;         // `bucket: column` is allowed
  bool error_feedback = false;  // default
  std::int64_t bucket = 64;     // default
  CodecOptions defaults;        // of its own options
  /// Bytes of the record of m >= 1 values, a bucket or less.
  std::int64_t (*record_bytes)(const CodecSpec&, std::int64_t m) = nullptr;

  // What only some kinds have.
  void (*options)(config::Visitor&, CodecSpec&) = nullptr;  // keys beside bucket and error_feedback
  void (*more_defaults)(CodecSpec&) = nullptr;  // bucket and error_feedback that follow from those
  std::optional<OptionConflict> (*conflict)(const CodecSpec&) = nullptr;
  bool (*hides_non_finite)(const CodecSpec&) = nullptr;     // the opposite of Codec::carries_non_finite
  std::int64_t (*table_bytes)(const CodecSpec&) = nullptr;  // Codec::table_bytes
  void (*make_table)(const CodecSpec&, const std::int64_t* counts, std::byte* table) = nullptr;
};

/// The kernels of one kind for one instruction set. They see records only; `table` is what precedes them.
struct CodecKernels {
  bool (*encode)(const CodecSpec& spec, const std::byte* table, const float* values, float* residual,
                 std::int64_t n, std::int64_t first, std::int64_t bucket, const CodingContext& context,
                 std::byte* out) = nullptr;
  bool (*decode)(const CodecSpec& spec, const std::byte* table, const std::byte* in, std::int64_t n,
                 std::int64_t bucket, bool add, float* out) = nullptr;
  /// Codec::reduce of buckets up to reduce_bucket, without a table; nullptr: decode, add and encode in turn.
  /// `scratch` holds a bucket, rounded up to 64 values.
  bool (*reduce)(const CodecSpec& spec, const std::byte* const* contributions, std::size_t ranks,
                 float* residual, std::int64_t n, std::int64_t first, std::int64_t bucket,
                 const CodingContext& context, float* scratch, std::byte* out) = nullptr;
  std::int64_t reduce_bucket = std::numeric_limits<std::int64_t>::max();
  /// Adds the values to the table_cells counts that make_table starts from.
  void (*count)(const CodecSpec& spec, const float* values, const float* residual, std::int64_t n,
                std::int64_t bucket, std::int64_t* counts) = nullptr;
};
inline constexpr int table_cells = 256;

struct CodecEntry {
  const char* name;
  CodecRow row;
  CodecKernels (*kernels)(CpuIsa isa);
};

std::span<const CodecEntry> codec_table();
/// The entry of that name; Error when there is none.
const CodecEntry& codec_entry(std::string_view kind);

}  // namespace lpsgd
