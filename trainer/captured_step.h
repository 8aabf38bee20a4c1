// Backward, exchange and update of a step as one CUDA graph, with an ordered transport.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>

#include "core/capture.h"
#include "core/device.h"

namespace lpsgd {

class Transport;

/// Seconds on the device.
struct PartSeconds {
  double backward = 0, exposed = 0, update = 0;
};

/// The first run() captures backward, exchange and update; every run() launches the graph.
class CapturedStep {
 public:
  explicit CapturedStep(StreamView stream);
  ~CapturedStep();
  CapturedStep(const CapturedStep&) = delete;
  CapturedStep& operator=(const CapturedStep&) = delete;

  struct Parts {
    std::function<void()> backward, exchange, update;
    std::function<void()> launched;  // called after each launch
  };
  /// Waits for the last run, then launches the graph. DeviceError if the parts cannot be captured.
  void run(const Parts& parts);
  /// Seconds of the runs since the last take(). Waits for the last run.
  PartSeconds take();

 private:
  void collect();

  StreamView stream_;
  std::array<Event, 4> boundaries_;  // of the parts
  Event done_;
  bool running_ = false;
  PartSeconds seconds_;
  CapturedGraph graph_;
};

/// Two captured steps, used in turn: the host reads the times and flags of one while the other runs.
class CapturedSteps {
 public:
  /// Whether the next step should be run(). A collective call, before every step. The ranks decide once,
  /// after `plain_steps` steps: yes if `can()` is true on all of them, because all ranks or none must launch
  /// graphs. `parts` names them in the log.
  bool wanted(Transport& transport, std::int64_t step, int plain_steps, const std::function<bool()>& can,
              StreamView stream, const char* parts = "backward, exchange and update");
  /// For steps that launch other work: they are captured anew. To be called after take().
  void restart() { *this = CapturedSteps(); }
  void run(std::size_t step, const CapturedStep::Parts& parts) { steps_[step % 2].run(parts); }
  PartSeconds take();

 private:
  int steps_before_ = 0;
  std::optional<bool> wanted_;
  std::deque<CapturedStep> steps_;
};

}  // namespace lpsgd
