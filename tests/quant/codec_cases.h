// Codecs, lengths and values that every implementation of the codecs is tested with.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "core/config.h"
#include "quant/codec.h"

namespace lpsgd::codec_cases {

using Bytes = std::vector<std::byte>;

CodecSpec spec_of(const std::string& text);
const std::vector<std::string>& all_specs();
/// 0, 1, primes, one off a bucket.
const std::vector<std::int64_t>& lengths();

/// Kinds: 0 bell-shaped, 1 of mixed magnitude, 2 constant, 3 zero, 4 denormal, 5 near the largest, 6 all
/// different kinds of values and signed zeros.
std::vector<float> inputs(std::int64_t n, int kind, std::uint32_t seed = 1);
inline constexpr int kinds = 7;

/// The codec for a tensor of n values.
Codec codec_of(const CodecSpec& spec, std::int64_t n, CpuIsa isa = cpu_isas().back());

struct Encoded {
  Bytes bytes;
  std::vector<float> residual;
  std::vector<float> decoded;
  bool finite = false;
};

/// A job that encodes the values, of one tensor from its first element on. An empty residual is none.
CodingJob encoding(const Codec& codec, const std::vector<float>& values, std::vector<float>& residual,
                   Bytes& bytes, std::uint32_t tensor = 0);
CodingJob decoding(const Codec& codec, Bytes& bytes, std::vector<float>& out);
CodingJob reduction(const Codec& codec, const std::vector<const std::byte*>& contributions, std::int64_t n,
                    std::vector<float>& residual, Bytes& bytes, std::uint32_t tensor = 0);
/// Encodes and decodes them.
Encoded encode(const Codec& codec, const std::vector<float>& values, const std::vector<float>& residual,
               const CodingContext& context, std::uint32_t tensor);

template <class T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// A case of the golden vectors (tests/golden/make_golden.py).
struct Golden {
  config::Value meta;
  std::vector<Bytes> blobs;

  std::int64_t integer(const char* key) const { return config::to_integer(*meta.find(key), key); }
  bool truth(const char* key) const { return config::to_bool(*meta.find(key), key); }
  CodingContext context() const;
  /// A job with the case's size and element; the codec is bound to the case's bucket.
  CodingJob job(const Codec& codec) const;
};
std::vector<Golden> golden_cases(const std::string& path);
std::vector<float> floats(const Bytes& bytes);
Bytes bytes_of(const std::vector<float>& values);

}  // namespace lpsgd::codec_cases
