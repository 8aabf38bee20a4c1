// Codecs: float32 gradients -> bytes -> float32 (EDBT 2018, sections 2-3; docs/numerics.md fixes the
// arithmetic, docs/wire-format.md the bytes).
//
// A codec is stateless and thread-safe: residuals belong to the exchange. A tensor (in the codec's order, see
// Layout) is cut into buckets of bucket(elements) values, the last one shorter. Each bucket is one
// self-contained record of known size; the encoding of consecutive buckets is the concatenation of their
// records, so it does not depend on how stripes, chunks and messages are cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/tensor_info.h"

namespace lpsgd {

/// A codec and its options as configured: `{kind: qsgd, bits: 4, bucket: 512}`.
struct CodecSpec {
  enum class Kind : std::uint8_t { none, fp16, bf16, onebit, qsgd, sign, topk, dynamic8 };
  enum class Norm : std::uint8_t { max, l2 };
  enum class Levels : std::uint8_t { sign_magnitude, interval, exponential, optimal };
  static constexpr std::int64_t whole_tensor = 0;  // `bucket: tensor`
  static constexpr std::int64_t column = -1;       // `bucket: column`

  Kind kind = Kind::none;
  std::int64_t bucket = whole_tensor;      // values, a multiple of 32, or one of the two above
  std::int64_t bits = 4;                   // qsgd
  Norm norm = Norm::max;                   // qsgd
  Levels levels = Levels::sign_magnitude;  // qsgd
  bool error_feedback = false;
};

/// Reads `{kind: ..., ...}` (or the bare word `none`). Unknown keys and impossible combinations throw
/// ConfigError.
CodecSpec parse_codec(const config::Value& value, const std::string& path);
/// The tree that parse_codec reads back as `spec`, with every option of its kind.
config::Value write_codec(const CodecSpec& spec);
/// The kind's word: "qsgd".
const char* kind_text(const CodecSpec& spec);
/// The options on one line: "{kind: qsgd, bits: 4, bucket: 512, ...}".
std::string to_text(const CodecSpec& spec);

/// Which values are being coded: the dither's counter (docs/numerics.md).
struct CodingContext {
  std::uint32_t seed = 0;
  std::uint32_t tensor = 0;  // number in the network's order
  std::uint32_t step = 0;    // from 0
  std::uint32_t rank = 0;    // the encoding rank: in round 2 the owner
  std::uint32_t round = 1;   // 1: worker to owner; 2: owner to all
};

class Codec {
 public:
  virtual ~Codec() = default;

  const CodecSpec& spec() const { return spec_; }
  bool error_feedback() const { return spec_.error_feedback; }

  /// Values per bucket of this tensor, >= 1: also the unit of striping (64 for none, fp16, bf16).
  virtual std::int64_t bucket(const TensorInfo& tensor) const = 0;

  /// Bytes of the records of `n` consecutive values that start at a bucket boundary.
  virtual std::size_t encoded_bytes(std::int64_t n, std::int64_t bucket) const = 0;

  /// Encodes values[0..n), which are elements [first, first + n) of the tensor; `first` is a multiple of
  /// `bucket`. With `residual` (same range, may not alias values) v = values + residual is coded and
  /// residual becomes v - decode(encode(v)); nullptr codes the values alone. Writes encoded_bytes(n, bucket).
  /// Returns whether every v and every bucket's sum was finite (the bytes carry it too).
  virtual bool encode(const float* values, float* residual, std::int64_t n, std::int64_t first,
                      std::int64_t bucket, const CodingContext& context, std::byte* out) const = 0;

  /// Decodes the records of n values into out[0..n): sets, or with `add` adds one rounding per value. Any
  /// bytes of the right length decode without touching memory outside `in` and `out`. Returns whether every
  /// decoded value was finite.
  virtual bool decode(const std::byte* in, std::int64_t n, std::int64_t bucket, bool add,
                      float* out) const = 0;

  /// The owner's step, in one pass over memory: decodes the K contributions in rank order and adds them in
  /// float32, multiplies by the float32 nearest to 1/K, and encodes the mean with the round-2 residual
  /// (context.round = 2, context.rank = the owner). Returns encode's answer for the mean.
  virtual bool reduce(std::span<const std::byte* const> contributions, float* residual, std::int64_t n,
                      std::int64_t first, std::int64_t bucket, const CodingContext& context,
                      std::byte* out) const;

 protected:
  explicit Codec(const CodecSpec& spec) : spec_(spec) {}
  CodecSpec spec_;
};

/// The codec for `spec`, running on the CPU with the best instruction set of this machine.
std::shared_ptr<const Codec> make_codec(const CodecSpec& spec);

/// Memory order -> the order `bucket: column` encodes in, and back (TensorInfo::Columns). n =
/// outer*rows*columns.
void to_column_order(const TensorInfo::Columns& shape, const float* memory, float* encoded);
void from_column_order(const TensorInfo::Columns& shape, const float* encoded, float* memory);

/// Half-open ranges of elements that each rank's stripe covers, in the codec's order. Stripe r is buckets
/// [floor(r n/K), floor((r+1) n/K)) of n buckets, and belongs to rank (r + tensor) mod K.
struct Stripe {
  std::int64_t first = 0, last = 0;  // elements
  int owner = 0;
};
std::vector<Stripe> stripes(std::int64_t elements, std::int64_t bucket, int ranks, std::size_t tensor);

}  // namespace lpsgd
