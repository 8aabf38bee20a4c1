// Fragments: groups of tensors that local steps synchronise in turn (Streaming DiLoCo, Douillard et al.
// 2025).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/tensor_info.h"

namespace lpsgd {

/// Consecutive tensors, in the network's order.
struct Fragment {
  std::size_t first = 0, last = 0;  // tensors [first, last)
  std::size_t at = 0, values = 0;   // their part of an arena, with the gaps between tensors
};

/// ConfigError if a network of so many tensors cannot have `count` fragments.
void check_fragments(std::int64_t count, std::size_t tensors);

/// The fragment of tensors [first, last). `arena`: the size of the arenas in which the tensors lie.
Fragment fragment_of(const std::vector<TensorInfo>& tensors, std::size_t first, std::size_t last,
                     std::size_t arena);

/// `count` fragments with as equal numbers of elements as whole tensors allow, none of them empty.
/// ConfigError as check_fragments().
std::vector<Fragment> fragments_of(const std::vector<TensorInfo>& tensors, std::int64_t count,
                                   std::size_t arena);

}  // namespace lpsgd
