// A pass as a CUDA graph: one launch in place of hundreds.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "core/device.h"

namespace lpsgd::cuda {

/// Runs work that queues the same launches on the same memory every time. The first runs go to the stream as
/// they are (libraries set themselves up then); later ones are recorded once and replayed. Work that cannot
/// be recorded goes on as it is.
class Recording {
 public:
  Recording() = default;
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  void run(StreamView stream, const std::function<void()>& work);
  bool is_recorded() const { return graph_ != nullptr; }

 private:
  void record(StreamView stream, const std::function<void()>& work);

  static constexpr int plain_runs = 2;
  int runs_ = 0;
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace lpsgd::cuda
