#include "core/tensor_info.h"

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

}  // namespace lpsgd
