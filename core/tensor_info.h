// What all layers of the program use of a trainable tensor: its name, kind, shape and position.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lpsgd {

/// A tensor's role in its layer. The rules of `exchange` and `no_decay` use these words.
enum class TensorKind : std::uint8_t { conv, dense, norm, bias, lstm, embedding };

const char* to_text(TensorKind kind);

/// A trainable tensor. Tensors are numbered from 0 in the order of their definition in the network, which is
/// PyTorch's order. Dither, stripes and initial weights depend on that number.
struct TensorInfo {
  std::string name;  // PyTorch's: "layer1.0.conv1.weight"
  TensorKind kind = TensorKind::bias;
  std::vector<std::int64_t> shape;  // in PyTorch's order: conv (O, I/groups, H, W), dense (out, in)
  std::int64_t elements = 0;        // product of shape
  std::int64_t offset = 0;          // of the first element in the arenas, in floats; a multiple of 16

  /// How `bucket: column` orders the tensor. Memory (conv O-H-W-I, dense out x in) is `outer` matrices of
  /// `rows` x `columns`. Each matrix is encoded transposed, so a column (a bucket) has `rows` values.
  /// conv: outer = O * H, rows = W, columns = I. dense, lstm: outer = 1, rows = out, columns = in. Any other
  /// tensor is one column: outer = 1, rows = elements, columns = 1.
  struct Columns {
    std::int64_t outer = 1, rows = 0, columns = 1;
  };
  Columns columns() const;
};

// Copy a tensor between memory order and PyTorch's. Only convolutions differ: O-H-W-I and O-I-H-W.
void to_pytorch_order(const TensorInfo& tensor, const float* memory, float* pytorch);
void from_pytorch_order(const TensorInfo& tensor, const float* pytorch, float* memory);

}  // namespace lpsgd
