#include "core/tensor_info.h"

#include <algorithm>

namespace lpsgd {

const char* to_text(TensorKind kind) {
  switch (kind) {
    case TensorKind::conv:
      return "conv";
    case TensorKind::dense:
      return "dense";
    case TensorKind::norm:
      return "norm";
    case TensorKind::bias:
      return "bias";
    case TensorKind::lstm:
      return "lstm";
    case TensorKind::embedding:
      return "embedding";
  }
  return "?";
}

TensorInfo::Columns TensorInfo::columns() const {
  if (kind == TensorKind::conv && shape.size() == 4) return {shape[0] * shape[2], shape[3], shape[1]};
  if ((kind == TensorKind::dense || kind == TensorKind::lstm) && shape.size() == 2)
    return {1, shape[0], shape[1]};
  return {1, elements, 1};
}

namespace {

/// Copies (a, b, c) to (a, c, b).
void swap_inner(const float* from, float* to, std::int64_t a, std::int64_t b, std::int64_t c) {
  for (std::int64_t i = 0; i < a; ++i)
    for (std::int64_t j = 0; j < b; ++j)
      for (std::int64_t k = 0; k < c; ++k) to[(i * c + k) * b + j] = from[(i * b + j) * c + k];
}

}  // namespace

void to_pytorch_order(const TensorInfo& tensor, const float* memory, float* pytorch) {
  if (tensor.kind == TensorKind::conv)
    swap_inner(memory, pytorch, tensor.shape[0], tensor.shape[2] * tensor.shape[3], tensor.shape[1]);
  else
    std::copy_n(memory, tensor.elements, pytorch);
}

void from_pytorch_order(const TensorInfo& tensor, const float* pytorch, float* memory) {
  if (tensor.kind == TensorKind::conv)
    swap_inner(pytorch, memory, tensor.shape[0], tensor.shape[1], tensor.shape[2] * tensor.shape[3]);
  else
    std::copy_n(pytorch, tensor.elements, memory);
}

}  // namespace lpsgd
