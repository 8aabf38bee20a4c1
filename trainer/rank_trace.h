// One rank's trace of a run: its folder is checked before the first step, its file written after the last.
#pragma once

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

/// Of a step, in seconds of now_seconds().
struct StepTimes {
  double step = 0;                             // when it began
  double begin = 0;                            // when a micro-batch began: for add(), the last one
  double data = 0, forward = 0, backward = 0;  // when each part of that ended
  double exposed = 0, update = 0;              // when exposed communication and update ended
  double sending = 0;  // when the communication began, if an update lies between backward and it
};

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

  /// The step `number`, with its last micro-batch.
  void add(std::int64_t number, const StepTimes& at) const;
  /// Another one, up to its backward.
  void add_micro_batch(const StepTimes& at) const;

 private:
  Trace& trace_;
  Trace::Track steps_, compute_;
  Trace::Label step_, data_, forward_, backward_, exposed_, update_;
  std::unique_ptr<StreamTrace> updates_;
  Trace::Label updated_ = 0;
};

}  // namespace lpsgd
