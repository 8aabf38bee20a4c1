// Codecs: float32 gradients -> bytes -> float32 (EDBT 2018, sections 2-3; docs/numerics.md fixes the
// arithmetic, docs/wire-format.md the bytes).
//
// A codec is stateless and thread-safe: residuals belong to the exchange. A tensor (in the codec's order, see
// TensorInfo::Columns) is cut into buckets, the last one shorter. Each bucket is one self-contained record of
// known size. The encoding of consecutive buckets is the concatenation of their records, so it does not
// depend on stripes, chunks and messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"
#include "core/tensor_info.h"
#include "quant/codec_list.h"
#include "quant/coding_job.h"

namespace lpsgd {

/// Counts the changes of docs/wire-format.md that make new bytes unreadable for old programs, and the
/// reverse.
inline constexpr int wire_format_version = 1;

/// Instruction sets of the CPU. The kernels are compiled once for each from the same source and give the same
/// bytes; the program picks one at run time.
enum class CpuIsa : std::uint8_t {
  baseline,  // x86-64
  avx2,      // AVX2, FMA, F16C
  avx512,    // AVX-512 F, BW, DQ, VL
};
const char* to_text(CpuIsa isa);
/// The instruction sets of this machine, the best last.
const std::vector<CpuIsa>& cpu_isas();

/// How many values share a bucket, as configured: `bucket: 512`, `bucket: tensor` or `bucket: column`.
struct BucketSize {
  enum class Kind : std::uint8_t { values, tensor, column };
  using enum Kind;

  constexpr BucketSize(Kind k) : kind(k) {}  // NOLINT(google-explicit-constructor)
  // NOLINTNEXTLINE(google-explicit-constructor)
  constexpr BucketSize(std::int64_t n) : kind(Kind::values), count(n) {}
  /// Values per bucket of this tensor, at least 1.
  std::int64_t of(const TensorInfo& info) const;
  bool operator==(const BucketSize&) const = default;

  Kind kind;
  std::int64_t count = 0;  // of Kind::values: a multiple of 32
};

/// A codec and its options as configured: `{kind: qsgd, bits: 4, bucket: 512}`.
struct CodecSpec {
  std::string_view kind = "none";  // a name of the list (quant/codec_list.h)
  BucketSize bucket = 64;          // none, fp16 and bf16: only the unit of striping
  bool error_feedback = false;
  CodecOptions options;  // the kind's own

  bool is_none() const { return kind == "none"; }
};

/// Reads `{kind: ..., ...}` (or the bare word `none`). Unknown keys and impossible combinations throw
/// ConfigError.
CodecSpec parse_codec(const config::Value& value, const std::string& path);
/// The tree that parse_codec reads back as `spec`, with every option of its kind.
config::Value write_codec(const CodecSpec& spec);
/// The values that parse_codec takes.
config::Shape codec_shape();
/// The options on one line: "{kind: qsgd, bits: 4, bucket: 512, ...}".
std::string to_text(const CodecSpec& spec);

struct CodecEntry;
struct CodecKernels;

/// A codec with its bucket length, running on the CPU.
class Codec {
 public:
  /// `bucket` values per bucket, at least 1. Error if the options exclude each other.
  Codec(const CodecSpec& spec, std::int64_t bucket, CpuIsa isa = cpu_isas().back());

  const CodecSpec& spec() const { return spec_; }
  bool error_feedback() const { return spec_.error_feedback; }
  /// Values per bucket: also the unit of striping.
  std::int64_t bucket() const { return bucket_; }

  /// Bytes of the encoding of `n` consecutive values that start at a bucket boundary: their records and, for
  /// n > 0, the table before them.
  std::size_t encoded_bytes(std::int64_t n) const { return n > 0 ? table_bytes() + records_bytes(n) : 0; }

  /// Bytes of the table that precedes every encoding (qsgd's optimal levels), 0 for most codecs. With a table
  /// the encoding of consecutive buckets is one table, then their records: a stripe must not be cut.
  std::size_t table_bytes() const;

  /// Whether the bytes show that a value was non-finite. Otherwise (sign with majority) only encode()'s
  /// result does.
  bool carries_non_finite() const;

  /// A job for `n` values from element `first` of the tensor on, a multiple of the bucket.
  CodingJob job(std::int64_t first, std::int64_t n, std::size_t tensor = 0) const;

  /// Writes the table for job.values (plus residual, if there is one): table_bytes() bytes.
  void make_table(const CodingJob& job, std::byte* table) const;

  /// Encodes job.values into encoded_bytes(n) bytes. With a residual v = values + residual is coded and the
  /// residual becomes v - decode(encode(v)). Returns whether every v and every bucket's sum was finite.
  bool encode(const CodingJob& job, const CodingContext& context) const;

  /// Decodes job.bytes into job.out: sets, or with `add` adds with one rounding per value. Any bytes of the
  /// right length decode without touching memory outside of both. Returns whether every decoded value was
  /// finite.
  bool decode(const CodingJob& job, bool add = false) const;

  /// The owner's step, in one pass over memory: decodes job.contributions in rank order and adds them in
  /// float32, multiplies by the float32 nearest to 1/ranks, and encodes the mean with the round-2 residual
  /// (context.round = 2, context.rank = the owner). A table is made from the mean, which takes a pass of its
  /// own. Returns what encode() of the mean returns.
  bool reduce(const CodingJob& job, const CodingContext& context) const;

 private:
  std::size_t records_bytes(std::int64_t n) const;
  CodingJob records_of(CodingJob job) const;
  bool reduce_in_parts(const CodingJob& job, const CodingContext& context, std::int64_t part,
                       float* mean) const;

  CodecSpec spec_;
  std::int64_t bucket_;
  const CodecEntry* entry_;
  std::shared_ptr<const CodecKernels> kernels_;
};

/// The codec for this tensor, with the best instruction set of this machine.
std::shared_ptr<const Codec> make_codec(const CodecSpec& spec, const TensorInfo& tensor);

/// Memory order -> the order `bucket: column` encodes in, and back. Both have outer * rows * columns values.
void to_column_order(const TensorInfo::Columns& shape, const float* memory, float* encoded);
void from_column_order(const TensorInfo::Columns& shape, const float* encoded, float* memory);

/// Half-open ranges of elements that each rank's stripe covers, in the codec's order. Stripe r is buckets
/// [floor(r n/K), floor((r+1) n/K)) of n buckets, and belongs to rank (r + tensor) mod K.
struct Stripe {
  std::int64_t first = 0, last = 0;  // elements
  int owner = 0;
};
std::vector<Stripe> stripes(std::int64_t elements, std::int64_t bucket, int ranks, std::size_t tensor);
/// That of one rank.
Stripe stripe_of(int rank, std::int64_t elements, std::int64_t bucket, int ranks, std::size_t tensor);

}  // namespace lpsgd
