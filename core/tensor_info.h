// What every part of the program agrees on about a trainable tensor: its name, kind, shape and place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lpsgd {

/// What a tensor is in its layer; rules and `no_decay` speak of these.
enum class TensorKind : std::uint8_t { conv, dense, norm, bias, lstm, embedding };

const char* to_text(TensorKind kind);

/// A trainable tensor. Tensors are numbered from 0 in the network's order (the order of definition, which is
/// PyTorch's), and dither, stripes and initial weights depend on that number.
struct TensorInfo {
  std::string name;  // PyTorch's name, e.g. "layer1.0.conv1.weight"
  TensorKind kind = TensorKind::bias;
  std::vector<std::int64_t> shape;  // PyTorch's order: conv (O, I/groups, H, W), dense (out, in)
  std::int64_t elements = 0;        // product of shape
  std::int64_t offset = 0;          // first element in the arenas, in floats; a multiple of 16

  /// The order `bucket: column` encodes in, seen from memory order (conv O-H-W-I, dense out x in): memory is
  /// `outer` matrices of `rows` x `columns`, and each is encoded transposed; a column (bucket) is `rows`
  /// long. conv: outer = O*H, rows = W, columns = I. dense, lstm: outer = 1, rows = out, columns = in. Any
  /// other tensor is one column: outer = 1, rows = elements, columns = 1.
  struct Columns {
    std::int64_t outer = 1, rows = 0, columns = 1;
  };
  Columns columns() const;
};

}  // namespace lpsgd
