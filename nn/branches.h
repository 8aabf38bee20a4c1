// Which operations of a pass may run at the same time. A pass is a list of tasks in an order that is right.
// Tasks that do not use the same memory need no order. They are divided over branches, which a device runs
// beside each other: the branches of a CUDA graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lpsgd {

/// Whether passes that are captured as CUDA graphs have several branches. `measured`: those in which the
/// device is faster with them. Results are the same bits.
enum class Branches : std::uint8_t { never, measured, always };

/// A pass is captured behind so many runs, when libraries have initialised themselves; and with `measured`
/// each way is measured in so many of the runs that follow.
inline constexpr int uncaptured_runs = 2, measured_runs = 4;
/// How many runs it takes until it is settled how a pass runs.
constexpr int unsettled_runs(Branches branches) {
  return uncaptured_runs + 1 + (branches == Branches::measured ? 2 * measured_runs : 0);
}

/// The most branches of a pass on which layers run; and the number of one more, which waits for them and
/// announces gradients, so that none of the others has to wait.
inline constexpr std::size_t most_branches = 4, announcing_branch = most_branches;

/// Memory that a task reads or writes, from `begin` to before `end`.
struct Access {
  /// Activations and their gradients, in bytes; gradients of parameters, in values; what operations keep for
  /// themselves, a number for each of them.
  enum class Space : std::uint8_t { activations, gradients, state } space = Space::activations;
  std::int64_t begin = 0, end = 0;
  bool writes = false;
  // Of rows of `stride` bytes only `width` bytes behind `column`. Stride 0: all of each.
  std::int64_t stride = 0, column = 0, width = 0;

  /// Whether the order of the two matters.
  bool conflicts_with(const Access& other) const;
};

struct BranchTask {
  std::vector<Access> accesses;
  double seconds = 0;           // an estimate
  std::size_t last_branch = 0;  // it may run on branches 0 to this one; branch 0 goes on behind the pass
  /// It runs on branch 0 only if it starts there earlier by its own seconds: others wait for that branch.
  bool avoids_first = false;
  bool announces = false;      // it runs on announcing_branch alone
  std::int64_t workspace = 0;  // bytes
};

/// Where each task of a pass runs, and what it waits for.
struct BranchSchedule {
  struct Place {
    std::size_t branch = 0;
    std::vector<std::size_t> waits;  // for these tasks of other branches
    bool is_awaited = false;         // other branches wait for it
  };
  std::vector<Place> tasks;       // to be queued in this order
  std::vector<std::size_t> ends;  // tasks that branch 0 waits for at the end
  double seconds = 0;             // from the first to the last, by the estimates
  std::size_t branches() const;   // on which there are operations
  bool is_parallel() const { return branches() > 1; }
};

/// Divides tasks over branches so that two of them whose accesses conflict keep their order. Each task goes
/// where it can start first, by the estimates.
BranchSchedule place_on_branches(std::span<const BranchTask> tasks);

}  // namespace lpsgd
