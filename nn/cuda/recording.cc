#include "nn/cuda/recording.h"

#include <exception>
#include <string>

#include "core/cuda/check.h"
#include "core/error.h"
#include "core/log.h"

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
  cudaError_t made = cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal);
  std::string why;
  std::exception_ptr failure;
  cudaGraph_t graph = nullptr;
  if (made == cudaSuccess) {
    try {
      work();
    } catch (const DeviceError& e) {
      why = e.what();
    } catch (...) {
      failure = std::current_exception();
    }
    made = cudaStreamEndCapture(stream.handle(), &graph);
  }
  if (why.empty() && !failure && made == cudaSuccess && graph) {
    made = cudaGraphInstantiate(&graph_, graph, 0);
    if (made != cudaSuccess) graph_ = nullptr;
  }
  if (graph) cudaGraphDestroy(graph);
  cudaGetLastError();  // a failed recording is no failure
  if (failure) std::rethrow_exception(failure);
  if (!graph_)
    log::info("a pass cannot be recorded as a CUDA graph and is launched kernel by kernel: {}",
              why.empty() ? cudaGetErrorString(made) : why);
}

}  // namespace lpsgd::cuda
