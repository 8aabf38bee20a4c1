// Work on a device's streams, captured once and launched as one CUDA graph.
#pragma once

#include <functional>
#include <utility>

#include "core/device.h"

struct CUgraphExec_st;  // cudaGraphExec_t

namespace lpsgd {

/// Captures the work that is queued on a stream, and on streams that wait for its events and that it waits
/// for in the end. This takes the same launches on the same memory every time; work that they depend on is
/// captured with them or precedes them on that stream. Meanwhile the host waits for nothing, and only the
/// calling thread queues work there. Events with timing may only be used to measure seconds: they are
/// recorded whenever the graph is launched. The other events order what is captured, and mean nothing outside
/// until they are recorded anew.
class CapturedGraph {
 public:
  CapturedGraph() = default;
  ~CapturedGraph();
  CapturedGraph(CapturedGraph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
  CapturedGraph& operator=(CapturedGraph&& other) noexcept {
    std::swap(graph_, other.graph_);
    return *this;
  }

  /// Calls `work`, whose launches are captured instead of run. DeviceError where they cannot be; then
  /// they have not run either. What `work` throws is thrown on. The stream is a CUDA device's.
  void capture(StreamView stream, const std::function<void()>& work);
  /// Queues what was captured, once.
  void launch(StreamView stream) const;
  bool is_captured() const { return graph_ != nullptr; }

 private:
  CUgraphExec_st* graph_ = nullptr;
};

/// Whether what is queued on the stream now is being captured.
bool is_capturing(StreamView stream);

}  // namespace lpsgd
