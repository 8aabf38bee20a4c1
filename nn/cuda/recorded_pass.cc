#include "nn/cuda/recorded_pass.h"

#include "core/error.h"
#include "core/log.h"

namespace lpsgd::cuda {

void RecordedPass::run(StreamView stream, const std::function<void()>& pass) {
  if (is_being_recorded(stream)) return pass();
  if (runs_ <= plain_runs && runs_++ == plain_runs) {
    try {
      recording_.record(stream, pass);
    } catch (const DeviceError& e) {
      log::info("a pass cannot be recorded as a CUDA graph and is launched kernel by kernel: {}", e.what());
    }
  }
  if (recording_.is_recorded())
    recording_.replay(stream);
  else
    pass();
}

}  // namespace lpsgd::cuda
