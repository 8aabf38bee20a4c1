// Work on a device's streams, recorded once and replayed in one launch: a CUDA graph.
#pragma once

#include <functional>
#include <utility>

#include "core/device.h"

struct CUgraphExec_st;  // cudaGraphExec_t

namespace lpsgd {

/// What `work` queues on a stream, and on streams that wait for its events and are waited for in the end, may
/// be recorded if it is the same launches on the same memory every time, and if work that it depends on has
/// been recorded with it or precedes it on that stream. The host waits for nothing meanwhile, and of several
/// threads that take part one at a time does. Of events those
/// with timing may only be used to tell seconds: they are recorded whenever the recording is replayed; the
/// others order what is recorded, and mean nothing outside until they are recorded anew.
class Recording {
 public:
  Recording() = default;
  ~Recording();
  Recording(Recording&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
  Recording& operator=(Recording&& other) noexcept {
    std::swap(graph_, other.graph_);
    return *this;
  }

  /// Calls `work`, whose launches are recorded instead of run. DeviceError where they cannot be; then
  /// they have not run either. What `work` throws is thrown on. The stream is a CUDA device's.
  void record(StreamView stream, const std::function<void()>& work);
  /// Queues what was recorded, once.
  void replay(StreamView stream) const;
  bool is_recorded() const { return graph_ != nullptr; }

 private:
  CUgraphExec_st* graph_ = nullptr;
};

/// Whether what is queued on the stream now is being recorded.
bool is_being_recorded(StreamView stream);

}  // namespace lpsgd
