// Asks memory for what a loop will read next.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lpsgd {

/// In bytes. An Intel Xeon by itself looks ahead too little, and hardly beyond a page of 4 KiB. On an AMD
/// EPYC 0, which asks for what is read at once, is the fastest over all loops (docs/results/codecs.md).
extern const std::size_t prefetch_distance;

/// Asks for the `bytes` bytes that begin prefetch_distance after `at`, which may lie behind the array's end.
/// For loops over arrays in order. Always inline, because callers are compiled for several instruction sets.
template <std::size_t bytes = 64>
[[gnu::always_inline]] inline void prefetch_after(const void* at) {
  constexpr std::size_t line = 64;
  const std::uintptr_t from = reinterpret_cast<std::uintptr_t>(at) + prefetch_distance;
#pragma GCC unroll 4
  for (std::size_t i = 0; i < bytes; i += line)
    __builtin_prefetch(reinterpret_cast<const void*>(from + i));  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace lpsgd
