#include "nn/init.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "core/philox.h"

namespace lpsgd {

void initialize(const TensorInfo& tensor, std::uint32_t index, std::uint32_t seed, Init init,
                std::span<float> values) {
  if (init.kind == Init::Kind::constant) {
    std::fill(values.begin(), values.end(), static_cast<float>(init.scale));
    return;
  }
  std::vector<float> drawn(values.size());
  if (init.kind == Init::Kind::sines) {
    const auto columns = static_cast<std::size_t>(tensor.shape.back());
    for (std::size_t e = 0; e < drawn.size(); ++e) {
      const std::size_t column = e % columns, pair = column / 2 * 2;
      const double angle = static_cast<double>(e / columns) *
                           std::pow(10000.0, -static_cast<double>(pair) / static_cast<double>(columns));
      drawn[e] = static_cast<float>(column % 2 == 0 ? std::sin(angle) : std::cos(angle));
    }
    from_pytorch_order(tensor, drawn.data(), values.data());
    return;
  }
  for (std::size_t e = 0; e < drawn.size(); e += 4) {
    const Philox4x32 block = philox4x32(static_cast<std::uint32_t>(e / 4), index, 0, 0, seed,
                                        static_cast<std::uint32_t>(RandomUse::weights));
    double draw[4];
    for (int i = 0; i < 4; ++i) draw[i] = (static_cast<double>(block.x[i]) + 0.5) * 0x1p-32;  // in (0, 1)
    if (init.kind == Init::Kind::uniform) {
      for (double& d : draw) d = 2 * d - 1;
    } else {
      for (int i = 0; i < 4; i += 2) {
        const double radius = std::sqrt(-2 * std::log(draw[i]));
        const double angle = 2 * std::numbers::pi * draw[i + 1];
        draw[i] = radius * std::cos(angle);
        draw[i + 1] = radius * std::sin(angle);
      }
    }
    for (std::size_t i = 0; i < 4 && e + i < drawn.size(); ++i)
      drawn[e + i] = static_cast<float>(draw[i] * init.scale);
  }
  from_pytorch_order(tensor, drawn.data(), values.data());
}

}  // namespace lpsgd
