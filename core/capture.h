// Work on a device's streams, captured once and launched as one CUDA graph.
#pragma once

#include <functional>
#include <utility>

#include "core/device.h"

struct CUgraphExec_st;  // cudaGraphExec_t

namespace lpsgd {

/// Captures the work that is queued on a stream, and on other streams that wait for its events and are joined
/// to it by events before the capture ends. The work must be the same, on the same memory, at every launch.
/// It may depend only on captured work and on earlier work of that stream. During the capture the host must
/// not wait for these streams, and only the calling thread may queue work on them. Timing events are recorded
/// at every launch; only seconds_between() may use them. Other events order the captured work; outside the
/// graph they are invalid until they are recorded again.
class CapturedGraph {
 public:
  CapturedGraph() = default;
  ~CapturedGraph();
  CapturedGraph(CapturedGraph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
  CapturedGraph& operator=(CapturedGraph&& other) noexcept {
    std::swap(graph_, other.graph_);
    return *this;
  }

  /// Calls `work`; what it queues is captured and does not run. Throws DeviceError if it cannot be captured,
  /// and rethrows what `work` throws. The stream is a CUDA device's.
  void capture(StreamView stream, const std::function<void()>& work);
  /// Queues what was captured, once.
  void launch(StreamView stream) const;
  bool is_captured() const { return graph_ != nullptr; }

 private:
  CUgraphExec_st* graph_ = nullptr;
};

/// Whether work queued on the stream now is captured.
bool is_capturing(StreamView stream);

}  // namespace lpsgd
