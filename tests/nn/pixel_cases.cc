#include "tests/nn/pixel_cases.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/philox.h"

namespace lpsgd {
namespace {

struct PixelCase {
  ImageShape stored, sample;
  bool has_crops = true;
};

const PixelCase cases[] = {
    {{8, 7, 3}, {8, 7, 3}},        {{8, 7, 1}, {8, 7, 1}},        {{5, 9, 4}, {5, 9, 4}},
    {{6, 5, 7}, {6, 5, 7}},        {{12, 13, 3}, {9, 7, 3}},      {{11, 12, 1}, {5, 5, 1}},
    {{3, 4, 3}, {7, 9, 3}},        {{1, 1, 3}, {1, 1, 3}},        {{2, 301, 3}, {2, 97, 3}},
    {{9, 9, 3}, {7, 7, 3}, false}, {{4, 5, 1}, {6, 6, 1}, false},
};

/// Offsets in and around the image: in it, over each side, at its edges, and beside it.
std::vector<PixelCrop> crops_of(const PixelCase& c) {
  const auto offsets = [](std::int64_t stored, std::int64_t sample) {
    const auto room = static_cast<std::int32_t>(stored - sample), out = static_cast<std::int32_t>(sample);
    const auto in = static_cast<std::int32_t>(stored);
    return std::vector<std::int32_t>{0,      room / 2, room, -1,       room + 1, 1 - out,
                                     in - 1, -out,     in,   -out - 3, in + 3};
  };
  std::vector<PixelCrop> crops;
  for (const std::int32_t down : offsets(c.stored.height, c.sample.height))
    for (const std::int32_t across : offsets(c.stored.width, c.sample.width))
      for (const std::int32_t mirrored : {0, 1}) crops.push_back({down, across, mirrored});
  return crops;
}

float scaled(std::uint8_t x, double mean, double std) {
  const float divided = static_cast<float>(x) / 255.0f;
  const float moved = divided - static_cast<float>(mean);
  return moved / static_cast<float>(std);
}

std::vector<float> reference(const PixelCase& c, const std::vector<std::uint8_t>& pixels,
                             const std::vector<PixelCrop>& crops, const Normalization& norm, DataType type) {
  std::vector<float> out;
  for (std::size_t n = 0; n < crops.size(); ++n) {
    const PixelCrop crop = c.has_crops ? crops[n] : PixelCrop{};
    for (std::int64_t y = 0; y < c.sample.height; ++y)
      for (std::int64_t x = 0; x < c.sample.width; ++x)
        for (std::int64_t k = 0; k < c.sample.channels; ++k) {
          const std::int64_t row = y + crop.down;
          const std::int64_t column = (crop.mirrored ? c.sample.width - 1 - x : x) + crop.across;
          std::uint8_t byte = 0;
          if (row >= 0 && row < c.stored.height && column >= 0 && column < c.stored.width)
            byte = pixels[n * static_cast<std::size_t>(c.stored.bytes()) +
                          static_cast<std::size_t>((row * c.stored.width + column) * c.stored.channels + k)];
          const auto channel = static_cast<std::size_t>(k);
          const float value = scaled(byte, norm.mean[channel], norm.std[channel]);
          out.push_back(type == DataType::f32 ? value : widen(narrow<Bf16>(value)));
        }
  }
  return out;
}

void check(Backend& backend, const PixelCase& c, DataType type) {
  const std::vector<PixelCrop> crops = crops_of(c);
  const auto batch = static_cast<std::int64_t>(crops.size());
  PhiloxSequence random(1, RandomUse::dataset, 5);
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(batch * c.stored.bytes()));
  for (std::uint8_t& p : pixels) p = static_cast<std::uint8_t>(random.next());
  Normalization norm;
  for (std::int64_t k = 0; k < c.stored.channels; ++k) {
    norm.mean.push_back(0.4914 - 0.1 * static_cast<double>(k));
    norm.std.push_back(0.247 + 0.01 * static_cast<double>(k));
  }
  const std::int64_t elements = batch * c.sample.bytes();
  void* output = backend.allocate(elements * size_of(type));
  const auto input = backend.pixel_input({batch, c.stored, c.sample, norm, type, output});
  const auto loss =
      backend.softmax_cross_entropy(type, backend.allocate(batch * size_of(type)), nullptr, {batch, 1, 1});
  backend.finish_planning();
  backend.prepare_thread();
  Pass pass{.training = true, .valid = batch};
  if (c.has_crops) pass.crops = crops;
  std::vector<float> got(static_cast<std::size_t>(elements));
  for (int round = 0; round < 3; ++round) {  // new bytes in the buffers that the rounds take in turn
    for (std::uint8_t& p : pixels) p = static_cast<std::uint8_t>(p + 77);
    backend.begin(pass, std::vector<std::int32_t>(crops.size(), 0));
    input->upload(pass, pixels, nullptr);
    backend.download(got, type, output);
    ASSERT_EQ(got, reference(c, pixels, crops, norm, type));
  }
}

}  // namespace

void check_pixel_inputs(const std::function<std::unique_ptr<Backend>()>& make, DataType type) {
  for (const PixelCase& c : cases) {
    SCOPED_TRACE(fmt::format("({}, {}, {}) to ({}, {})", c.stored.height, c.stored.width, c.stored.channels,
                             c.sample.height, c.sample.width));
    check(*make(), c, type);
  }
}

}  // namespace lpsgd
