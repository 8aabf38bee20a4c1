// A pass as a CUDA graph: one launch instead of hundreds.
#pragma once

#include <functional>

#include "core/capture.h"

namespace lpsgd::cuda {

/// Runs a pass that queues the same launches on the same memory every time. The first runs are not captured,
/// because libraries initialize themselves then. The next run is captured, and its graph is launched from
/// then on. A pass that cannot be captured keeps running uncaptured, and so does one within a larger graph.
class CapturedPass {
 public:
  void run(StreamView stream, const std::function<void()>& pass);
  bool is_captured() const { return graph_.is_captured(); }

 private:
  static constexpr int uncaptured_runs = 2;
  int runs_ = 0;
  CapturedGraph graph_;
};

}  // namespace lpsgd::cuda
