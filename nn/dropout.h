// Which values dropout drops (Srivastava and others 2014). The draw of value e of a sample is word e mod 4 of
// Philox block (e / 4, position of the sample in the global batch, step, layer). So it depends neither on
// ranks nor on threads or devices.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/philox.h"

namespace lpsgd {

/// What an operation's random draws depend on, besides the step.
struct RandomSource {
  std::uint32_t seed = 0, layer = 0;
  std::int64_t first = 0;  // position of the rank's first sample in the global batch
};

struct DropoutDraws {
  std::uint32_t seed = 0, layer = 0, first = 0;  // of the RandomSource
  std::uint32_t limit = 0;                       // a value is kept if its draw is at least this
  float scale = 1;                               // of the values that are kept: 1 / (1 - probability)

  DropoutDraws() = default;
  DropoutDraws(const RandomSource& random, double probability)
      : seed(random.seed),
        layer(random.layer),
        first(static_cast<std::uint32_t>(random.first)),
        limit(static_cast<std::uint32_t>(std::floor(probability * 0x1p32))),
        scale(static_cast<float>(1 / (1 - probability))) {}

  /// Attention's weights: the first block of a head's row of weights, which begin with a block of their own.
  LPSGD_HD static std::uint32_t first_block(std::int64_t head, std::int64_t row, std::int64_t frames) {
    return static_cast<std::uint32_t>((head * frames + row) * ((frames + 3) / 4));
  }
  /// Of four values of the sample with this position.
  LPSGD_HD Philox4x32 draw(std::uint32_t block, std::uint32_t position, std::uint32_t step) const {
    return philox4x32(block, position, step, layer, seed, static_cast<std::uint32_t>(RandomUse::dropout));
  }
};

}  // namespace lpsgd
