#include "nn/branches.h"

#include <algorithm>
#include <array>

namespace lpsgd {

namespace {

/// What starting behind a task of another branch takes longer than behind one of the same.
constexpr double seconds_between_branches = 1e-6;

bool overlap(std::int64_t begin, std::int64_t end, std::int64_t other_begin, std::int64_t other_end) {
  return begin < other_end && other_begin < end;
}

bool conflict(const BranchTask& a, const BranchTask& b) {
  return std::ranges::any_of(a.accesses, [&](const Access& x) {
    return std::ranges::any_of(b.accesses, [&](const Access& y) { return x.conflicts_with(y); });
  });
}

/// Of each branch: how many of its tasks are done.
using Done = std::array<std::size_t, most_branches + 1>;

void join(Done& into, const Done& other) {
  for (std::size_t b = 0; b < into.size(); ++b) into[b] = std::max(into[b], other[b]);
}

class Placing {
 public:
  explicit Placing(std::span<const BranchTask> tasks) : tasks_(tasks), placed_(tasks.size()) {
    out_.tasks.resize(tasks.size());
  }

  BranchSchedule run() {
    for (std::size_t t = 0; t < tasks_.size(); ++t) place(t);
    Done done = branches_[0].done;
    for (std::size_t t = tasks_.size(); t-- > 0;)
      if (!is_done(t, done)) out_.ends.push_back(await(t, done));
    return std::move(out_);
  }

 private:
  struct Placed {
    std::size_t number = 0;  // among those of its branch, from 1
    double end = 0;          // seconds
    Done done{};             // when it is
  };
  struct Branch {
    std::size_t tasks = 0;
    double free_from = 0;
    Done done{};  // when its last task is
  };

  bool is_done(std::size_t task, const Done& done) const {
    return done[out_.tasks[task].branch] >= placed_[task].number;
  }
  std::size_t await(std::size_t task, Done& done) {
    out_.tasks[task].is_awaited = true;
    join(done, placed_[task].done);
    return task;
  }

  void place(std::size_t t) {
    const BranchTask& task = tasks_[t];
    std::vector<std::size_t> before;  // the tasks it comes behind, the last one first
    for (std::size_t other = t; other-- > 0;)
      if (conflict(task, tasks_[other])) before.push_back(other);

    std::size_t chosen = task.announces ? announcing_branch : 0;
    double start = 0, least = 0;
    for (std::size_t b = 0; b <= task.last_branch && !task.announces; ++b) {
      double at = branches_[b].free_from;
      for (const std::size_t other : before)
        at =
            std::max(at, placed_[other].end + (out_.tasks[other].branch == b ? 0 : seconds_between_branches));
      const double counted = at + (b == 0 && task.avoids_first ? task.seconds : 0);
      if (b != 0 && counted >= least) continue;
      chosen = b;
      start = at;
      least = counted;
    }
    Branch& branch = branches_[chosen];
    BranchSchedule::Place& place = out_.tasks[t];
    place.branch = chosen;
    Done done = branch.done;
    for (const std::size_t other : before)
      if (!is_done(other, done)) place.waits.push_back(await(other, done));
    done[chosen] = ++branch.tasks;
    branch.done = done;
    branch.free_from = start + task.seconds;
    out_.seconds = std::max(out_.seconds, branch.free_from);
    placed_[t] = {branch.tasks, branch.free_from, done};
  }

  std::span<const BranchTask> tasks_;
  std::vector<Placed> placed_;
  std::array<Branch, most_branches + 1> branches_;
  BranchSchedule out_;
};

}  // namespace

bool Access::conflicts_with(const Access& other) const {
  if (space != other.space || !(writes || other.writes) || !overlap(begin, end, other.begin, other.end))
    return false;
  const bool same_rows = stride != 0 && begin == other.begin && stride == other.stride;
  return !same_rows || overlap(column, column + width, other.column, other.column + other.width);
}

std::size_t BranchSchedule::branches() const {
  std::array<bool, most_branches + 1> used{};
  for (const Place& place : tasks) used[place.branch] = true;
  used[announcing_branch] = false;
  return static_cast<std::size_t>(std::ranges::count(used, true));
}

BranchSchedule place_on_branches(std::span<const BranchTask> tasks) {
  return Placing(tasks).run();
}

}  // namespace lpsgd
