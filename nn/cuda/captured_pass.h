// A pass as a CUDA graph: one launch in place of hundreds.
#pragma once

#include <functional>

#include "core/capture.h"

namespace lpsgd::cuda {

/// Runs a pass, which queues the same launches on the same memory every time. The first runs go to the stream
/// as they are (libraries set themselves up then); the next is captured, and its graph launched from then on.
/// A pass that cannot be captured goes on as it is, and so does one within a larger graph.
class CapturedPass {
 public:
  void run(StreamView stream, const std::function<void()>& pass);
  bool is_captured() const { return graph_.is_captured(); }

 private:
  static constexpr int plain_runs = 2;
  int runs_ = 0;
  CapturedGraph graph_;
};

}  // namespace lpsgd::cuda
