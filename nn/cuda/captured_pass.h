// A pass as a CUDA graph: one launch instead of hundreds.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "core/capture.h"
#include "nn/branches.h"

namespace lpsgd::cuda {

/// Runs a pass that queues the same launches on the same memory every time. The first runs are not captured,
/// because libraries initialize themselves then. The next run is captured, and its graph is launched from
/// then on. A pass that cannot be captured keeps running uncaptured, and so does one within a larger graph.
///
/// A pass that can also be queued on several branches is captured both ways, and the graphs are launched in
/// turn. When each has been measured several times, the host waits for them once, and the faster one is kept.
class CapturedPass {
 public:
  using Work = std::function<void()>;

  /// `on_branches` may be empty. `measures`: it is to be compared with `pass`; otherwise it takes its place.
  /// `name` is for the log.
  void run(StreamView stream, const char* name, const Work& pass, const Work& on_branches, bool measures);
  bool is_captured() const { return graphs_[kept_].is_captured(); }
  /// Whether it may be queued on branches: it has not failed yet.
  bool can_branch() const { return can_branch_; }
  /// Seconds of both ways; nothing if they have not been compared.
  struct Comparison {
    double plain = 0, branching = 0;
    bool prefers_branches() const;
  };
  const std::optional<Comparison>& comparison() const { return comparison_; }

 private:
  enum Way : std::size_t { plain, branching };
  struct Measured {
    Way way;
    Event begin, end;
  };

  void capture(StreamView stream, const char* name, const Work& pass, const Work& on_branches, bool measures);
  void launch(StreamView stream);
  /// Waits for the measured runs, and keeps the faster way.
  void choose();

  int runs_ = 0;
  std::array<CapturedGraph, 2> graphs_;  // by Way
  Way kept_ = plain;
  std::vector<Measured> measured_;
  bool measures_ = false, can_branch_ = true;
  std::optional<Comparison> comparison_;
};

}  // namespace lpsgd::cuda
