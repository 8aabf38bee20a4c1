#include "core/capture.h"

#include <exception>

#include "core/cuda/runtime.h"

namespace lpsgd {

CapturedGraph::~CapturedGraph() {
  if (graph_ != nullptr) cuda::destroy_graph(graph_);
}

void CapturedGraph::capture(StreamView stream, const std::function<void()>& work) {
  require(stream.device().is_cuda(), "the CPU's work cannot be captured");
  const ScopedDevice scope(stream.device());
  cuda::begin_capture(stream.handle());
  try {
    work();
  } catch (...) {
    cuda::abandon_capture(stream.handle());
    throw;
  }
  CUgraphExec_st* graph = cuda::end_capture(stream.handle());
  if (graph_ != nullptr) cuda::destroy_graph(graph_);
  graph_ = graph;
}

void CapturedGraph::launch(StreamView stream) const {
  require(is_captured(), "nothing has been captured");
  const ScopedDevice scope(stream.device());
  cuda::launch_graph(graph_, stream.handle());
}

bool is_capturing(StreamView stream) {
  return stream.device().is_cuda() && cuda::is_capturing(stream.handle());
}

}  // namespace lpsgd
