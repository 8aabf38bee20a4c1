// The shape of one sample: (H, W, C), (frames, features) or (features). It does not include the batch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lpsgd {

using Shape = std::vector<std::int64_t>;

/// The limit for a tensor of one sample and for a parameter. Their indices fit in 32 bits.
constexpr std::int64_t max_elements = (std::int64_t{1} << 31) - 1;

/// "(32, 32, 16)"
std::string shape_text(const Shape& shape);
/// The product of the dimensions, or nothing if it is above `limit`.
std::optional<std::int64_t> elements_of(const Shape& shape, std::int64_t limit = max_elements);

/// The height and width of a window, a stride or a padding.
struct Size2 {
  std::int64_t h = 1, w = 1;
  bool operator==(const Size2&) const = default;
};

}  // namespace lpsgd
