// The weights, the optimizer's arenas, running statistics and carried state of a network in host memory.
#pragma once

#include <span>
#include <vector>

#include "core/buffer.h"
#include "nn/network.h"
#include "nn/optimizer.h"

namespace lpsgd {

/// On the CPU this is the network's own memory. On a device it is a copy: download() fetches the device's
/// values, upload() writes the copy back; both wait for the device.
class HostState {
 public:
  /// `arenas` lie on the network's device.
  explicit HostState(Network& network, const std::vector<NamedArena>& arenas = {});
  std::span<float> parameters() const { return parameters_.host; }
  TensorArena frozen() const { return frozen_; }
  /// Named as those that the constructor got.
  const std::vector<NamedArena>& arenas() const { return arenas_; }
  const std::vector<NamedBuffer>& buffers() const { return buffers_; }
  /// What recurrent layers carry from batch to batch in training.
  const std::vector<NamedBuffer>& carried() const { return carried_; }
  void download();
  void upload();

 private:
  struct Array {
    std::span<float> own, host;
  };
  Array mirrored(std::span<float> own);
  std::vector<NamedBuffer> mirrored(const std::vector<NamedBuffer>& own);

  StreamView stream_;
  std::vector<Buffer<float>> copies_;
  Array parameters_;
  std::vector<Array> arrays_;  // of frozen tensors, the arenas, the buffers and the carried state
  TensorArena frozen_;
  std::vector<NamedArena> arenas_;
  std::vector<NamedBuffer> buffers_, carried_;
};

}  // namespace lpsgd
