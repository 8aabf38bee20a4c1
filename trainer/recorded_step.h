// What follows a step's forward pass, where the transport allows it, as one CUDA graph.
#pragma once

#include <array>
#include <functional>

#include "core/device.h"
#include "core/recording.h"

namespace lpsgd {

/// Seconds on the device.
struct PartSeconds {
  double backward = 0, exposed = 0, update = 0;
};

/// Backward, exchange and update, recorded the first time and replayed from then on. Of the two that take
/// turns one is read while the other runs.
class RecordedStep {
 public:
  explicit RecordedStep(StreamView stream);
  ~RecordedStep();
  RecordedStep(const RecordedStep&) = delete;
  RecordedStep& operator=(const RecordedStep&) = delete;

  struct Parts {
    std::function<void()> backward, exchange, update;
    std::function<void()> launched;  // called behind the launch
  };
  /// Queues what was recorded of the parts, and waits for the run before. DeviceError where they cannot be
  /// recorded.
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
  Recording recording_;
};

}  // namespace lpsgd
