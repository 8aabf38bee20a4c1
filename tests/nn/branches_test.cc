// Tasks on branches: conflicting ones keep their order, whatever the device does first.
#include "nn/branches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace lpsgd {
namespace {

using Space = Access::Space;

/// The bytes of an access, one by one.
std::set<std::int64_t> bytes_of(const Access& a) {
  std::set<std::int64_t> out;
  for (std::int64_t at = a.begin; at < a.end; ++at) {
    const std::int64_t column = a.stride == 0 ? 0 : (at - a.begin) % a.stride;
    if (a.stride == 0 || (column >= a.column && column < a.column + a.width)) out.insert(at);
  }
  return out;
}

bool share_bytes(const Access& a, const Access& b) {
  const std::set<std::int64_t> of_a = bytes_of(a), of_b = bytes_of(b);
  return a.space == b.space && (a.writes || b.writes) &&
         std::ranges::any_of(of_a, [&](std::int64_t at) { return of_b.contains(at); });
}

bool share_bytes(const BranchTask& a, const BranchTask& b) {
  return std::ranges::any_of(a.accesses, [&](const Access& x) {
    return std::ranges::any_of(b.accesses, [&](const Access& y) { return share_bytes(x, y); });
  });
}

/// before[j][i]: task i ends before task j starts, by the order on branches and the waits alone.
std::vector<std::vector<bool>> order_of(const BranchSchedule& schedule) {
  const std::size_t n = schedule.tasks.size();
  std::vector<std::vector<bool>> before(n, std::vector<bool>(n, false));
  const auto follow = [&](std::size_t task, std::size_t other) {
    before[task][other] = true;
    for (std::size_t k = 0; k < n; ++k)
      if (before[other][k]) before[task][k] = true;
  };
  for (std::size_t j = 0; j < n; ++j) {
    for (std::size_t i = 0; i < j; ++i)
      if (schedule.tasks[i].branch == schedule.tasks[j].branch) follow(j, i);
    for (const std::size_t i : schedule.tasks[j].waits) follow(j, i);
  }
  return before;
}

Access access(std::int64_t begin, std::int64_t end, bool writes) {
  return {.begin = begin, .end = end, .writes = writes};
}
Access columns(std::int64_t begin, std::int64_t end, std::int64_t stride, std::int64_t column,
               std::int64_t width, bool writes) {
  return {.begin = begin, .end = end, .writes = writes, .stride = stride, .column = column, .width = width};
}

BranchTask task(std::vector<Access> accesses, std::size_t last_branch = most_branches - 1) {
  BranchTask out;
  out.accesses = std::move(accesses);
  out.seconds = 1;
  out.last_branch = last_branch;
  return out;
}

TEST(Branches, AccessesConflictIfTheyShareBytes) {
  EXPECT_TRUE(access(0, 10, true).conflicts_with(access(9, 12, false)));
  EXPECT_TRUE(access(0, 10, false).conflicts_with(access(2, 3, true)));
  EXPECT_FALSE(access(0, 10, false).conflicts_with(access(0, 10, false)));
  EXPECT_FALSE(access(0, 10, true).conflicts_with(access(10, 12, true)));
  EXPECT_FALSE(columns(0, 80, 8, 0, 3, true).conflicts_with(columns(0, 80, 8, 3, 5, true)));
  EXPECT_TRUE(columns(0, 80, 8, 0, 4, true).conflicts_with(columns(0, 80, 8, 3, 5, true)));
  EXPECT_TRUE(columns(0, 80, 8, 0, 3, true).conflicts_with(access(40, 48, false)));
  Access other = access(0, 10, true);
  other.space = Space::state;
  EXPECT_FALSE(access(0, 10, true).conflicts_with(other));
}

TEST(Branches, ConflictingTasksKeepTheirOrder) {
  std::mt19937 random(1);
  const auto draw = [&](std::int64_t below) {
    return std::uniform_int_distribution<std::int64_t>(0, below - 1)(random);
  };
  std::size_t parallel = 0, crossing = 0;
  for (int repeat = 0; repeat < 200; ++repeat) {
    SCOPED_TRACE(repeat);
    std::vector<BranchTask> tasks;
    const std::int64_t memory = 4 + draw(60);
    for (std::int64_t n = 2 + draw(30); n > 0; --n) {
      BranchTask& t = tasks.emplace_back();
      for (std::int64_t k = 1 + draw(3); k > 0; --k) {
        const std::int64_t begin = draw(memory);
        Access a = access(begin, begin + 1 + draw(6), draw(2) == 0);
        if (draw(4) == 0) a.space = Space::gradients;
        if (draw(5) == 0) a = columns(memory, memory + 24, 6, 2 * draw(3), 2, draw(2) == 0);
        t.accesses.push_back(a);
      }
      t.seconds = static_cast<double>(1 + draw(10)) * 1e-6;
      t.avoids_first = draw(2) == 0;
      t.announces = draw(6) == 0;
      t.last_branch = static_cast<std::size_t>(draw(most_branches));
    }
    const BranchSchedule schedule = place_on_branches(tasks);
    ASSERT_EQ(schedule.tasks.size(), tasks.size());
    const std::vector<std::vector<bool>> before = order_of(schedule);
    std::vector<bool> awaited(tasks.size(), false);
    for (std::size_t j = 0; j < tasks.size(); ++j) {
      const BranchSchedule::Place& place = schedule.tasks[j];
      if (tasks[j].announces)
        EXPECT_EQ(place.branch, announcing_branch);
      else
        EXPECT_LE(place.branch, tasks[j].last_branch);
      for (const std::size_t i : place.waits) {
        EXPECT_LT(i, j);
        EXPECT_NE(schedule.tasks[i].branch, place.branch);
        awaited[i] = true;
        ++crossing;
      }
      for (std::size_t i = 0; i < j; ++i) {
        if (share_bytes(tasks[i], tasks[j]))
          EXPECT_TRUE(before[j][i]) << i << " before " << j;
        else if (!before[j][i])
          ++parallel;
      }
    }
    // What follows runs on branch 0, behind all tasks.
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      bool done = schedule.tasks[i].branch == 0;
      for (std::size_t j = 0; j < tasks.size(); ++j)
        done |= (schedule.tasks[j].branch == 0 || std::ranges::count(schedule.ends, j) > 0) &&
                (i == j || before[j][i]);
      EXPECT_TRUE(done) << i;
    }
    for (const std::size_t end : schedule.ends) awaited[end] = true;
    for (std::size_t i = 0; i < tasks.size(); ++i) EXPECT_EQ(schedule.tasks[i].is_awaited, awaited[i]) << i;
  }
  EXPECT_GT(parallel, 1000u);
  EXPECT_GT(crossing, 1000u);
}

TEST(Branches, WhatIsIndependentRunsAtTheSameTime) {
  // A fork into three chains of two, and a join.
  std::vector<BranchTask> tasks{task({access(0, 1, true)})};
  for (int chain = 0; chain < 3; ++chain) {
    tasks.push_back(task({access(0, 1, false), access(10 + chain, 11 + chain, true)}));
    tasks.push_back(task({access(10 + chain, 11 + chain, false), access(20 + chain, 21 + chain, true)}));
  }
  tasks.push_back(task({access(20, 23, false), access(30, 31, true)}));
  const BranchSchedule schedule = place_on_branches(tasks);
  std::set<std::size_t> branches;
  for (int chain = 0; chain < 3; ++chain) {
    const auto first = static_cast<std::size_t>(1 + 2 * chain);
    branches.insert(schedule.tasks[first].branch);
    EXPECT_EQ(schedule.tasks[first + 1].branch, schedule.tasks[first].branch);  // a chain stays on its branch
    EXPECT_TRUE(schedule.tasks[first + 1].waits.empty());
  }
  EXPECT_EQ(branches.size(), 3u);
  EXPECT_EQ(schedule.tasks.back().waits.size(), 2u);
}

// On branch 1, unless that is behind by what the task takes.
TEST(Branches, ATaskThatAvoidsTheFirstBranchBalancesThemAllTheSame) {
  std::vector<BranchTask> tasks{task({access(0, 1, true)})};
  for (int side = 0; side < 4; ++side) {
    tasks.push_back(task({access(0, 1, false), access(10 + side, 11 + side, true)}, 1));
    tasks.back().avoids_first = true;
  }
  const BranchSchedule schedule = place_on_branches(tasks);
  std::vector<std::size_t> branches;
  for (const BranchSchedule::Place& place : schedule.tasks) branches.push_back(place.branch);
  EXPECT_EQ(branches, (std::vector<std::size_t>{0, 1, 0, 1, 0}));
}

TEST(Branches, AChainHasOneBranch) {
  std::vector<BranchTask> tasks;
  for (int t = 0; t < 6; ++t) tasks.push_back(task({access(t, t + 1, false), access(t + 1, t + 2, true)}));
  const BranchSchedule schedule = place_on_branches(tasks);
  EXPECT_FALSE(schedule.is_parallel());
  for (const BranchSchedule::Place& place : schedule.tasks) EXPECT_EQ(place.branch, 0u);
}

}  // namespace
}  // namespace lpsgd
