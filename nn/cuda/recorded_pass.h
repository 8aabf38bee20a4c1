// A pass as a CUDA graph: one launch in place of hundreds.
#pragma once

#include <functional>

#include "core/recording.h"

namespace lpsgd::cuda {

/// Runs a pass, which queues the same launches on the same memory every time. The first runs go to the stream
/// as they are (libraries set themselves up then); later ones are recorded once and replayed. A pass that
/// cannot be recorded goes on as it is, and so does one within a larger recording.
class RecordedPass {
 public:
  void run(StreamView stream, const std::function<void()>& pass);
  bool is_recorded() const { return recording_.is_recorded(); }

 private:
  static constexpr int plain_runs = 2;
  int runs_ = 0;
  Recording recording_;
};

}  // namespace lpsgd::cuda
