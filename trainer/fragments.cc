#include "trainer/fragments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace lpsgd {

void check_fragments(std::int64_t count, std::size_t tensors) {
  if (tensors == 0) throw ConfigError("network.layers: no layer has parameters to train");
  if (count > static_cast<std::int64_t>(tensors))
    throw ConfigError(fmt::format("sync.fragments: {} fragments need as many tensors, and the network has {}",
                                  count, tensors));
}

Fragment fragment_of(const std::vector<TensorInfo>& tensors, std::size_t first, std::size_t last,
                     std::size_t arena) {
  const auto offset = [&](std::size_t tensor) {
    return tensor == tensors.size() ? arena : static_cast<std::size_t>(tensors[tensor].offset);
  };
  require(first < last && last <= tensors.size() && offset(first) <= offset(last),
          "a fragment's tensors lie in an arena in their order");
  return {first, last, offset(first), offset(last) - offset(first)};
}

std::vector<Fragment> fragments_of(const std::vector<TensorInfo>& tensors, std::int64_t count,
                                   std::size_t arena) {
  check_fragments(count, tensors.size());
  std::vector<std::int64_t> before{0};  // elements before each tensor
  for (const TensorInfo& tensor : tensors) before.push_back(before.back() + tensor.elements);
  std::vector<Fragment> out;
  std::size_t first = 0;
  for (std::int64_t f = 1; f <= count; ++f) {
    // The end that is nearest to its share, of those that leave each fragment a tensor.
    const std::size_t most = tensors.size() - static_cast<std::size_t>(count - f);
    const double share =
        static_cast<double>(before.back()) * static_cast<double>(f) / static_cast<double>(count);
    std::size_t last = f == count ? most : first + 1;
    const auto distance = [&](std::size_t end) { return std::abs(static_cast<double>(before[end]) - share); };
    while (last < most && distance(last + 1) < distance(last)) ++last;
    out.push_back(fragment_of(tensors, std::exchange(first, last), last, arena));
  }
  return out;
}

}  // namespace lpsgd
