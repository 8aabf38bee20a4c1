// What a concatenation copies: the inputs that do not lie in its columns of the output already.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "nn/ops.h"

namespace lpsgd {

/// Rows of `width` values, which belong at `column` of the output's rows.
struct ConcatPart {
  const void* value = nullptr;
  void* gradient = nullptr;
  std::int64_t width = 0, column = 0;
};
struct ConcatParts {
  std::vector<ConcatPart> forward, backward;  // whose values are copied; whose gradients are
};

inline ConcatParts concat_parts(const Binding& b) {
  ConcatParts out;
  std::int64_t column = 0;
  for (const InputView& in : b.inputs) {
    const ConcatPart part{in.value, in.gradient, in.shape.back(), column};
    const auto is_there = [&](const void* p, const void* whole) {
      return p == static_cast<const std::byte*>(whole) + column * size_of(b.type);
    };
    if (!is_there(in.value, b.output)) out.forward.push_back(part);
    if (in.gradient != nullptr && !is_there(in.gradient, b.output_gradients[0])) out.backward.push_back(part);
    column += part.width;
  }
  return out;
}

}  // namespace lpsgd
