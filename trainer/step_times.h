// The parts of a training step, measured and shown.
#pragma once

#include <array>
#include <cstdint>

#include "core/range.h"
#include "core/stopwatch.h"
#include "core/trace.h"

namespace lpsgd {

/// What the main thread does in a step, as spans.
class StepTrace {
 public:
  explicit StepTrace(Trace& to)
      : trace_(to),
        steps_(to.track("steps")),
        compute_(to.track("main thread")),
        step_(to.label("ProfilerStep#", "user_annotation")),
        data_(to.label("data", "cpu_op")),
        forward_(to.label("forward", "kernel")),
        backward_(to.label("backward", "kernel")),
        exposed_(to.label("exposed communication", "cpu_op")),
        update_(to.label("update", "kernel")) {}

  /// When it began, and when each part ended.
  void add(std::int64_t number, const std::array<double, 6>& at) const {
    trace_.span(steps_, step_, at[0], at[5], number);
    trace_.span(compute_, data_, at[0], at[1]);
    trace_.span(compute_, forward_, at[1], at[2]);
    trace_.span(compute_, backward_, at[2], at[3]);
    trace_.span(compute_, exposed_, at[3], at[4]);
    trace_.span(compute_, update_, at[4], at[5]);
  }

 private:
  Trace& trace_;
  Trace::Track steps_, compute_;
  Trace::Label step_, data_, forward_, backward_, exposed_, update_;
};

/// Where a step's time goes: the host's on the CPU; on a GPU that of its compute stream, so that `data` is
/// what it idles for want of work.
struct StepTimes {
  explicit StepTimes(StreamView stream)
      : data(stream), forward(stream), backward(stream), exposed(stream), update(stream) {}
  Stopwatch data, forward, backward, exposed, update;
};

/// A part of a step: measured, and shown to profilers.
template <class Work>
void part(const char* name, Stopwatch& watch, const Work& work) {
  const ScopedRange range(name);
  watch.start();
  work();
  watch.stop();
}

}  // namespace lpsgd
