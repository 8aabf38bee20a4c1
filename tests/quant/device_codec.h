// For tests of codecs on a device: memory there, and the comparison with the host.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "quant/cuda/cuda_codec.h"
#include "tests/core/gpu_test.h"
#include "tests/quant/codec_cases.h"

namespace lpsgd {

inline constexpr CodingContext base{.seed = 5, .step = 9, .rank = 1, .round = 2};

/// Two kinds more than codec_cases has, one of them with feedback: crowded().
inline constexpr int crowded_kinds = codec_cases::kinds + 2;
/// Some values are large, all of them in one piece of 4096.
std::vector<float> crowded(std::int64_t n, std::uint32_t seed);
/// inputs(), but kind `kinds` holds a NaN and an infinity, at two positions of their own, and later ones are
/// crowded.
std::vector<float> values_of(std::int64_t n, int kind, std::uint32_t seed);

class DeviceCodec : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    stream_ = std::make_unique<Stream>(device);
  }

  /// Device memory with these values, `offset` bytes off what it is aligned to.
  template <class T>
  T* up(const std::vector<T>& from, std::size_t offset = 0) {
    T* to = room<T>(from.size(), offset);
    copy_bytes(to, from.data(), from.size() * sizeof(T), *stream_);
    stream_->synchronize();
    return to;
  }
  template <class T>
  T* room(std::size_t size, std::size_t offset = 0) {
    const std::size_t bytes = size * sizeof(T) + offset;  // no more, so that sanitizers see what lies beyond
    memory_.emplace_back(device, std::is_same_v<T, std::byte> ? encoding_room(bytes) : bytes);
    return reinterpret_cast<T*>(memory_.back().data() + offset);
  }
  template <class T>
  std::vector<T> down(const T* from, std::size_t size) {
    std::vector<T> to(size);
    stream_->synchronize();
    copy_bytes(to.data(), from, size * sizeof(T), *stream_);
    stream_->synchronize();
    return to;
  }
  StreamView stream() const { return *stream_; }
  /// Encodes, reduces, decodes and adds one tensor of each length, in one batch, on the device and on the
  /// host.
  void compare(const std::string& text, int kind, const std::vector<std::int64_t>& all);

  std::unique_ptr<Stream> stream_;
  std::vector<DeviceMemory> memory_;
};

}  // namespace lpsgd
