// What a checkpoint holds of a network and its optimizer, where the host can read and write it.
#pragma once

#include <span>
#include <vector>

#include "core/buffer.h"
#include "nn/network.h"
#include "nn/optimizer.h"

namespace lpsgd {

/// The network's own memory on the CPU; of a device a copy, which download() and upload() bring up to date on
/// either side, waiting for it.
class HostState {
 public:
  /// `optimizer` may be null.
  HostState(Network& network, Optimizer* optimizer);
  std::span<float> parameters() const { return parameters_.host; }
  std::span<float> momentum() const { return momentum_.host; }
  const std::vector<NamedBuffer>& buffers() const { return buffers_; }
  void download();
  void upload();

 private:
  struct Array {
    std::span<float> own, host;
  };
  Array mirrored(std::span<float> own);

  StreamView stream_;
  std::vector<Buffer<float>> copies_;
  Array parameters_, momentum_;
  std::vector<Array> arrays_;  // of the buffers
  std::vector<NamedBuffer> buffers_;
};

}  // namespace lpsgd
