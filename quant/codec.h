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
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/config.h"
#include "core/tensor_info.h"

namespace lpsgd {

/// The options of one kind of codec: a small plain struct that only its own file knows the type of.
class CodecOptions {
 public:
  CodecOptions() = default;
  template <class T>
  static CodecOptions of(const T& options) {
    CodecOptions out;
    out.set(options);
    return out;
  }
  template <class T>
  [[gnu::always_inline]] T get() const {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= size);
    T out;
    __builtin_memcpy(&out, bytes_, sizeof out);
    return out;
  }
  template <class T>
  [[gnu::always_inline]] void set(const T& options) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= size);
    __builtin_memcpy(bytes_, &options, sizeof options);
  }

 private:
  static constexpr std::size_t size = 32;
  alignas(8) std::byte bytes_[size] = {};
};

/// A codec and its options as configured: `{kind: qsgd, bits: 4, bucket: 512}`.
struct CodecSpec {
  static constexpr std::int64_t whole_tensor = 0;  // `bucket: tensor`
  static constexpr std::int64_t column = -1;       // `bucket: column`

  std::string_view kind = "none";      // a name of the table (quant/codec_table.cc), which outlives the spec
  std::int64_t bucket = whole_tensor;  // values, a multiple of 32, or one of the two above
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

/// Which values are being coded: the dither's counter (docs/numerics.md).
struct CodingContext {
  std::uint32_t seed = 0;
  std::uint32_t tensor = 0;  // number in the network's order
  std::uint32_t step = 0;    // from 0
  std::uint32_t rank = 0;    // the encoding rank: in round 2 the owner
  std::uint32_t round = 1;   // 1: worker to owner; 2: owner to all
  /// Of a codec with tables: what Codec::make_table wrote; nullptr: encode makes one from the values at hand.
  const std::byte* table = nullptr;
};

class Codec {
 public:
  virtual ~Codec() = default;

  const CodecSpec& spec() const { return spec_; }
  bool error_feedback() const { return spec_.error_feedback; }

  /// Values per bucket of this tensor, >= 1: also the unit of striping (64 for none, fp16, bf16).
  virtual std::int64_t bucket(const TensorInfo& tensor) const = 0;

  /// Bytes of the encoding of `n` consecutive values that start at a bucket boundary: their records and, for
  /// n > 0, the table before them.
  virtual std::size_t encoded_bytes(std::int64_t n, std::int64_t bucket) const = 0;

  /// Bytes of the table that precedes every encoding (qsgd's optimal levels), 0 for most codecs. With a table
  /// the encoding of consecutive buckets is one table, then their records: a stripe must not be cut.
  virtual std::size_t table_bytes() const = 0;

  /// Whether a value that is not finite shows in the bytes. Otherwise (sign with majority) encode's answer
  /// alone tells.
  virtual bool carries_non_finite() const = 0;

  /// Writes the table for these values (plus residual, where there is one): table_bytes() bytes.
  virtual void make_table(const float* values, const float* residual, std::int64_t n, std::int64_t bucket,
                          std::byte* table) const = 0;

  /// Encodes values[0..n), which are elements [first, first + n) of the tensor; `first` is a multiple of
  /// `bucket`. With `residual` (same range, may not alias values) v = values + residual is coded and
  /// residual becomes v - decode(encode(v)); nullptr codes the values alone. Writes encoded_bytes(n, bucket).
  /// Returns whether every v and every bucket's sum was finite (the bytes carry it too).
  virtual bool encode(const float* values, float* residual, std::int64_t n, std::int64_t first,
                      std::int64_t bucket, const CodingContext& context, std::byte* out) const = 0;

  /// Decodes n values into out[0..n): sets, or with `add` adds one rounding per value. Any bytes of the right
  /// length decode without touching memory outside `in` and `out`. Returns whether every decoded value was
  /// finite.
  virtual bool decode(const std::byte* in, std::int64_t n, std::int64_t bucket, bool add,
                      float* out) const = 0;

  /// The owner's step, in one pass over memory: decodes the K contributions in rank order and adds them in
  /// float32, multiplies by the float32 nearest to 1/K, and encodes the mean with the round-2 residual
  /// (context.round = 2, context.rank = the owner). A table is made from the mean, which takes a pass of its
  /// own. Returns encode's answer for the mean.
  virtual bool reduce(std::span<const std::byte* const> contributions, float* residual, std::int64_t n,
                      std::int64_t first, std::int64_t bucket, const CodingContext& context,
                      std::byte* out) const = 0;

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
