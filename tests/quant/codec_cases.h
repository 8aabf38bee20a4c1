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

std::int64_t bucket_of(const Codec& codec, std::int64_t n);

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
};
std::vector<Golden> golden_cases(const std::string& path);
std::vector<float> floats(const Bytes& bytes);
Bytes bytes_of(const std::vector<float>& values);

}  // namespace lpsgd::codec_cases
