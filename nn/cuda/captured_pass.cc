#include "nn/cuda/captured_pass.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/log.h"

namespace lpsgd::cuda {

namespace {

/// Of the plain way's time: what is hardly faster is as likely noise.
constexpr double least_gain = 0.99;

}  // namespace

void CapturedPass::run(StreamView stream, const char* name, const Work& pass, const Work& on_branches,
                       bool measures) {
  // Until the ways have been compared, a larger graph has no branches.
  if (is_capturing(stream)) {
    const bool branches = on_branches && can_branch_ && (kept_ == branching || !measures);
    return branches ? on_branches() : pass();
  }
  if (runs_ <= uncaptured_runs && runs_++ == uncaptured_runs) {
    try {
      capture(stream, name, pass, on_branches, measures);
    } catch (const DeviceError& e) {
      log::info("{} cannot be captured as a CUDA graph and is launched kernel by kernel: {}", name, e.what());
    }
  }
  if (is_captured())
    launch(stream);
  else
    pass();
}

void CapturedPass::capture(StreamView stream, const char* name, const Work& pass, const Work& on_branches,
                           bool measures) {
  if (!on_branches || measures) graphs_[plain].capture(stream, pass);
  if (!on_branches) return;
  try {
    graphs_[branching].capture(stream, on_branches);
  } catch (const DeviceError& e) {
    log::info("{} cannot be captured on branches: {}", name, e.what());
    can_branch_ = false;
    if (!measures) graphs_[plain].capture(stream, pass);
    return;
  }
  if (!measures) kept_ = branching;
  measures_ = measures;
}

void CapturedPass::launch(StreamView stream) {
  if (measures_ && measured_.size() == 2 * measured_runs) choose();
  if (!measures_) return graphs_[kept_].launch(stream);
  Measured& now = measured_.emplace_back(Measured{measured_.size() % 2 == 0 ? plain : branching,
                                                  Event(stream.device(), Event::Timing::on),
                                                  Event(stream.device(), Event::Timing::on)});
  now.begin.record(stream);
  graphs_[now.way].launch(stream);
  now.end.record(stream);
}

bool CapturedPass::Comparison::prefers_branches() const {
  return branching < least_gain * plain;
}

void CapturedPass::choose() {
  measured_.back().end.synchronize();
  std::array<double, 2> best;
  best.fill(std::numeric_limits<double>::infinity());
  for (const Measured& m : measured_) best[m.way] = std::min(best[m.way], seconds_between(m.begin, m.end));
  comparison_ = {best[plain], best[branching]};
  if (comparison_->prefers_branches()) kept_ = branching;
  graphs_[kept_ == plain ? branching : plain] = {};
  measured_.clear();
  measures_ = false;
}

}  // namespace lpsgd::cuda
