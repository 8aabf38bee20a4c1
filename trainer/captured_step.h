// What follows a step's forward pass, where the transport allows it, as one CUDA graph.
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

/// Backward, exchange and update, captured the first time and launched from then on.
class CapturedStep {
 public:
  explicit CapturedStep(StreamView stream);
  ~CapturedStep();
  CapturedStep(const CapturedStep&) = delete;
  CapturedStep& operator=(const CapturedStep&) = delete;

  struct Parts {
    std::function<void()> backward, exchange, update;
    std::function<void()> launched;  // called behind the launch
  };
  /// Queues what was captured of the parts, and waits for the run before. DeviceError where they cannot be
  /// captured.
  void run(const Parts& parts);
  /// What the runs took since the last take(). Waits for them.
  PartSeconds take();

 private:
  void collect();

  StreamView stream_;
  std::array<Event, 4> between_;  // the parts
  Event done_;
  bool running_ = false;
  PartSeconds seconds_;
  CapturedGraph graph_;
};

/// Two that take turns: what one has left for the host is read while the other runs.
class CapturedSteps {
 public:
  /// Whether the step that comes is to be run(); asked before every step, of all ranks. Yes for good once
  /// backward has been launched by itself on all of them (`can`, asked once): NCCL wants them to agree.
  bool wanted(Transport& transport, std::int64_t step, const std::function<bool()>& can, StreamView stream);
  void run(std::size_t step, const CapturedStep::Parts& parts) { steps_[step % 2].run(parts); }
  PartSeconds take();

 private:
  int asked_ = 0;
  std::optional<bool> wanted_;
  std::deque<CapturedStep> steps_;
};

}  // namespace lpsgd
