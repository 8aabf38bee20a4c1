// The table of codecs: for each kind of the list its defaults, its options, the size of its records and its
// kernels. Internal to quant.
#pragma once

#include <limits>
#include <optional>
#include <span>
#include <string>

#include "quant/codec.h"

namespace lpsgd {

/// An option that excludes another.
struct OptionConflict {
  const char* key;
  std::string message;
};

/// What a codec's file declares of its kind.
struct CodecRow {
  bool bucketed = true;         // values share scales; otherwise buckets of 64 are only the unit of striping
  bool columns = false;         // `bucket: column` is allowed
  bool error_feedback = false;  // default
  BucketSize bucket = 64;       // default
  /// Bytes of the record of m >= 1 values, a bucket or less.
  std::int64_t (*record_bytes)(const CodecOptions&, std::int64_t m) = nullptr;

  // Optional members.
  void (*options)(config::Visitor&, CodecOptions&) = nullptr;  // keys beside bucket and error_feedback
  void (*more_defaults)(CodecSpec&) = nullptr;  // defaults of bucket and error_feedback that depend on them
  std::optional<OptionConflict> (*conflict)(const CodecSpec&) = nullptr;
  bool (*hides_non_finite)(const CodecOptions&) = nullptr;     // the opposite of Codec::carries_non_finite
  std::int64_t (*table_bytes)(const CodecOptions&) = nullptr;  // Codec::table_bytes
  /// From table_cells counts of the values (CodecKernels::count).
  void (*make_table)(const CodecOptions&, const std::int64_t* counts, std::byte* table) = nullptr;
};
inline constexpr int table_cells = 256;

/// The kernels of one kind for one instruction set. In a job, `bytes` points to the records and `table` to
/// the table that precedes them.
struct CodecKernels {
  bool (*encode)(const CodecOptions&, const CodingContext&, const CodingJob&) = nullptr;
  bool (*decode)(const CodecOptions&, const CodingJob&, bool add) = nullptr;
  /// Codec::reduce of buckets up to reduce_bucket, without a table; nullptr: decode, add and encode in turn.
  /// `scratch` holds a bucket, rounded up to 64 values.
  bool (*reduce)(const CodecOptions&, const CodingContext&, const CodingJob&, float* scratch) = nullptr;
  std::int64_t reduce_bucket = std::numeric_limits<std::int64_t>::max();
  /// Adds the job's values to the counts that CodecRow::make_table starts from.
  void (*count)(const CodecOptions&, const CodingJob&, std::int64_t* counts) = nullptr;
};

namespace cuda {
struct CodecKernels;  // quant/cuda/codec_kernels.h
}

struct CodecEntry {
  const char* name;
  CodecOptions defaults;
  CodecRow row;
  CodecKernels (*kernels)(CpuIsa isa);
  cuda::CodecKernels (*cuda)();  // nullptr in builds without CUDA
};

std::span<const CodecEntry> codec_table();
/// The entry of that name; Error when there is none.
const CodecEntry& codec_entry(std::string_view kind);
/// The first option of the spec that excludes another of it.
std::optional<OptionConflict> find_conflict(const CodecSpec& spec);

}  // namespace lpsgd
