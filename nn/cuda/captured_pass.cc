#include "nn/cuda/captured_pass.h"

#include "core/error.h"
#include "core/log.h"

namespace lpsgd::cuda {

void CapturedPass::run(StreamView stream, const std::function<void()>& pass) {
  if (is_capturing(stream)) return pass();
  if (runs_ <= uncaptured_runs && runs_++ == uncaptured_runs) {
    try {
      graph_.capture(stream, pass);
    } catch (const DeviceError& e) {
      log::info("a pass cannot be captured as a CUDA graph and is launched kernel by kernel: {}", e.what());
    }
  }
  if (graph_.is_captured())
    graph_.launch(stream);
  else
    pass();
}

}  // namespace lpsgd::cuda
