#include "trainer/recorded_step.h"

#include <fmt/format.h>

#include <utility>

#include "core/error.h"
#include "core/range.h"

namespace lpsgd {

namespace {

Event timed(StreamView stream) {
  return Event(stream.device(), Event::Timing::on);
}

}  // namespace

RecordedStep::RecordedStep(StreamView stream)
    : stream_(stream),
      between_{timed(stream), timed(stream), timed(stream), timed(stream)},
      done_(stream.device()) {}

RecordedStep::~RecordedStep() {
  try {  // its events are in use until then
    if (running_) done_.synchronize();
  } catch (const DeviceError&) {  // of earlier work: it has surfaced or will elsewhere
  }
}

void RecordedStep::run(const Parts& parts) {
  const ScopedRange range("recorded step");
  if (!recording_.is_recorded()) {
    try {
      recording_.record(stream_, [&] {
        between_[0].record(stream_);
        parts.backward();
        between_[1].record(stream_);
        parts.exchange();
        between_[2].record(stream_);
        parts.update();
        between_[3].record(stream_);
      });
    } catch (const Error& e) {  // NCCL's, too
      throw DeviceError(
          fmt::format("the step cannot be recorded as a CUDA graph ({}); train.cuda_graphs: false launches "
                      "it kernel by kernel",
                      e.what()));
    }
  }
  collect();
  recording_.replay(stream_);
  done_.record(stream_);
  running_ = true;
  parts.launched();
}

void RecordedStep::collect() {
  if (!std::exchange(running_, false)) return;
  done_.synchronize();
  seconds_.backward += seconds_between(between_[0], between_[1]);
  seconds_.exposed += seconds_between(between_[1], between_[2]);
  seconds_.update += seconds_between(between_[2], between_[3]);
}

PartSeconds RecordedStep::take() {
  collect();
  return std::exchange(seconds_, {});
}

}  // namespace lpsgd
