#include "data/speech/audio.h"

#include <fmt/core.h>

#include <cstdlib>

#include "core/error.h"

namespace lpsgd {

namespace {

std::int16_t sample_at(std::string_view bytes, std::size_t i, ByteOrder order) {
  const bool big = order == ByteOrder::big;
  const auto high = static_cast<std::uint8_t>(bytes[2 * i + (big ? 0 : 1)]);
  const auto low = static_cast<std::uint8_t>(bytes[2 * i + (big ? 1 : 0)]);
  return static_cast<std::int16_t>(static_cast<std::uint16_t>(high << 8 | low));
}

}  // namespace

std::int64_t roughness(std::string_view bytes, ByteOrder order) {
  std::int64_t sum = 0;
  for (std::size_t i = 1; i < bytes.size() / 2; ++i)
    sum += std::abs(sample_at(bytes, i, order) - sample_at(bytes, i - 1, order));
  return sum;
}

std::vector<std::int16_t> decode_samples(std::string_view bytes, const std::string& name, ByteOrder order) {
  require(order != ByteOrder::automatic, "samples are read in a known byte order");
  if (bytes.size() % 2 != 0)
    throw FileError(
        fmt::format("{}: {} bytes, which is no whole number of 16 bit samples", name, bytes.size()));
  std::vector<std::int16_t> samples(bytes.size() / 2);
  for (std::size_t i = 0; i < samples.size(); ++i) samples[i] = sample_at(bytes, i, order);
  return samples;
}

}  // namespace lpsgd
