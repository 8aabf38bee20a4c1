#include "trainer/captured_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "comm/transport.h"
#include "core/error.h"
#include "core/log.h"
#include "core/range.h"

namespace lpsgd {

namespace {

Event timed(StreamView stream) {
  return Event(stream.device(), Event::Timing::on);
}

}  // namespace

CapturedStep::CapturedStep(StreamView stream)
    : stream_(stream),
      boundaries_{timed(stream), timed(stream), timed(stream), timed(stream)},
      done_(stream.device()) {}

CapturedStep::~CapturedStep() {
  try {  // the graph uses the events until then
    if (running_) done_.synchronize();
  } catch (const DeviceError&) {  // of earlier work: it is reported elsewhere
  }
}

void CapturedStep::run(const Parts& parts) {
  const ScopedRange range("captured step");
  if (!graph_.is_captured()) {
    try {
      graph_.capture(stream_, [&] {
        boundaries_[0].record(stream_);
        parts.backward();
        boundaries_[1].record(stream_);
        parts.exchange();
        boundaries_[2].record(stream_);
        parts.update();
        boundaries_[3].record(stream_);
      });
    } catch (const CommError& e) {
      throw CommError(
          fmt::format("{} (while the step was captured as a CUDA graph, which train.cuda_graphs: false "
                      "leaves undone)",
                      e.what()));
    } catch (const DeviceError& e) {
      throw DeviceError(
          fmt::format("the step cannot be captured as a CUDA graph ({}); train.cuda_graphs: false launches "
                      "it kernel by kernel",
                      e.what()));
    }
  }
  collect();
  graph_.launch(stream_);
  done_.record(stream_);
  running_ = true;
  parts.launched();
}

void CapturedStep::collect() {
  if (!std::exchange(running_, false)) return;
  done_.synchronize();
  seconds_.backward += seconds_between(boundaries_[0], boundaries_[1]);
  seconds_.exposed += seconds_between(boundaries_[1], boundaries_[2]);
  seconds_.update += seconds_between(boundaries_[2], boundaries_[3]);
}

PartSeconds CapturedStep::take() {
  collect();
  return std::exchange(seconds_, {});
}

bool CapturedSteps::wanted(Transport& transport, std::int64_t step, int plain_steps,
                           const std::function<bool()>& can, StreamView stream, const char* parts) {
  if (!wanted_ && steps_before_++ == plain_steps) {
    const std::vector<double> all = transport.all_gather(can() ? 1.0 : 0.0);
    wanted_ = std::find(all.begin(), all.end(), 0.0) == all.end();
    for (int turn = 0; turn < (*wanted_ ? 2 : 0); ++turn) steps_.emplace_back(stream);
    if (*wanted_ && transport.rank() == 0)
      log::info("from step {} on, {} are one CUDA graph", step + 1, parts);
  }
  return wanted_.value_or(false);
}

PartSeconds CapturedSteps::take() {
  PartSeconds sum;
  for (CapturedStep& step : steps_) {
    const PartSeconds parts = step.take();
    sum.backward += parts.backward;
    sum.exposed += parts.exposed;
    sum.update += parts.update;
  }
  return sum;
}

}  // namespace lpsgd
