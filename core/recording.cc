#include "core/recording.h"

#include <exception>

#include "core/cuda/runtime.h"

namespace lpsgd {

Recording::~Recording() {
  if (graph_ != nullptr) cuda::destroy_graph(graph_);
}

void Recording::record(StreamView stream, const std::function<void()>& work) {
  require(stream.device().is_cuda(), "the CPU's work cannot be recorded");
  const ScopedDevice scope(stream.device());
  cuda::begin_recording(stream.handle());
  try {
    work();
  } catch (...) {
    cuda::give_up_recording(stream.handle());
    throw;
  }
  CUgraphExec_st* graph = cuda::end_recording(stream.handle());
  if (graph_ != nullptr) cuda::destroy_graph(graph_);
  graph_ = graph;
}

void Recording::replay(StreamView stream) const {
  require(is_recorded(), "nothing has been recorded");
  const ScopedDevice scope(stream.device());
  cuda::launch_graph(graph_, stream.handle());
}

bool is_being_recorded(StreamView stream) {
  return stream.device().is_cuda() && cuda::is_recording(stream.handle());
}

}  // namespace lpsgd
