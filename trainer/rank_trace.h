// One rank's trace of a run: its folder is checked before the first step, its file written after the last.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "comm/transport.h"
#include "core/device.h"
#include "core/stream_trace.h"
#include "core/trace.h"

namespace lpsgd {

/// A Chrome trace, `folder`/rankNNNN.json, or none.
class RankTrace {
 public:
  /// An empty `folder`: no trace.
  explicit RankTrace(std::string folder);
  /// Receives spans; null without a trace.
  Trace* get() const { return trace_.get(); }
  /// Makes the folder and checks that it can be written to, so that a mistake is found before the run.
  /// Collective.
  void prepare(Transport& transport) const;
  /// Collective.
  void write(Transport& transport) const;

 private:
  std::string folder_;
  std::unique_ptr<Trace> trace_;
};

/// When a step began, and when each part ended: data, forward, backward, exposed communication, update. The
/// last: when the communication began, if an update lies between backward and it, else 0. In seconds of
/// now_seconds().
using StepTimes = std::array<double, 7>;

/// The spans of the main thread: the step and its parts; on a GPU also those of updates on the compute
/// stream.
class StepTrace {
 public:
  explicit StepTrace(Trace& to, StreamView compute = {});

  /// Calls `work`, which queues an update.
  template <class Work>
  void update(const Work& work) {
    updates_ ? updates_->span(updated_, work) : work();
  }

  /// The step `number`.
  void add(std::int64_t number, const StepTimes& at) const;

 private:
  Trace& trace_;
  Trace::Track steps_, compute_;
  Trace::Label step_, data_, forward_, backward_, exposed_, update_;
  std::unique_ptr<StreamTrace> updates_;
  Trace::Label updated_ = 0;
};

}  // namespace lpsgd
