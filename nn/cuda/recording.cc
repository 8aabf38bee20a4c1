#include "nn/cuda/recording.h"

#include "core/cuda/check.h"
#include "core/error.h"

namespace lpsgd::cuda {

Recording::~Recording() {
  if (graph_) cudaGraphExecDestroy(graph_);
}

void Recording::run(StreamView stream, const std::function<void()>& work) {
  if (!graph_ && runs_ == plain_runs) record(stream, work);
  if (runs_ <= plain_runs) ++runs_;  // one attempt to record
  if (graph_)
    check(cudaGraphLaunch(graph_, stream.handle()));
  else
    work();
}

void Recording::record(StreamView stream, const std::function<void()>& work) {
  // Other threads' calls, such as the exchange's, stay as they are.
  check(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal));
  bool whole = true;
  try {
    work();
  } catch (const DeviceError&) {
    whole = false;
  }
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream.handle(), &graph);
  if (whole && ended == cudaSuccess && graph && cudaGraphInstantiate(&graph_, graph, 0) != cudaSuccess)
    graph_ = nullptr;
  if (graph) cudaGraphDestroy(graph);
  cudaGetLastError();  // a failed recording is no failure
}

}  // namespace lpsgd::cuda
