// Shapes of one sample: (H, W, C), (frames, features) or (features). The batch is not part of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lpsgd {

using Shape = std::vector<std::int64_t>;

/// The largest tensor of one sample, and the largest parameter: indices of either fit 32 bits.
constexpr std::int64_t max_elements = (std::int64_t{1} << 31) - 1;

/// "(32, 32, 16)"
std::string shape_text(const Shape& shape);
/// The product of the dimensions, or nothing above `limit`.
std::optional<std::int64_t> elements_of(const Shape& shape, std::int64_t limit = max_elements);

/// Height and width of a window, a step or a border.
struct Size2 {
  std::int64_t h = 1, w = 1;
  bool operator==(const Size2&) const = default;
};

}  // namespace lpsgd
