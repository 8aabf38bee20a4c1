#include "nn/plan_search.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/file.h"
#include "tests/core/temporary_folder.h"

namespace lpsgd {
namespace {

/// Candidates whose runs take as long as they say, on a clock of their own.
struct Machine {
  double now = 0;
  PlanSearch::Clock clock() {
    return [this] { return now; };
  }
  PlanSearch::Result measure(PlanSearch& search, double seconds, double first = 0) {
    bool began = false;
    return search.measure([&, this](int runs) {
      const double extra = began ? 0 : first;
      began = true;
      now += runs * seconds + extra;
      return seconds + extra;
    });
  }
};

TEST(PlanSearch, TakesTheFastest) {
  Machine m;
  PlanSearch search(10, 10, m.clock());
  EXPECT_TRUE(m.measure(search, 3e-3).fastest);
  EXPECT_TRUE(m.measure(search, 1e-3).fastest);
  EXPECT_FALSE(m.measure(search, 1.5e-3).fastest);
  EXPECT_FALSE(search.over());
}

TEST(PlanSearch, DropsAtOnceWhatIsSlowerThanTwiceTheBest) {
  Machine m;
  PlanSearch search(10, 10, m.clock());
  m.measure(search, 1e-3);
  const PlanSearch::Result slow = m.measure(search, 1.0);
  EXPECT_TRUE(slow.dropped);
  EXPECT_FALSE(slow.fastest);
  EXPECT_EQ(slow.runs, 1);
  EXPECT_EQ(m.measure(search, 2.5e-3).runs, 2);  // the first run might have loaded kernels
  const PlanSearch::Result near = m.measure(search, 1.9e-3);
  EXPECT_FALSE(near.dropped);
}

// Two runs tell that it is not the fastest; those that may be have more.
TEST(PlanSearch, WhatIsFarBehindHasTwoRuns) {
  Machine m;
  PlanSearch search(10, 10, m.clock());
  EXPECT_GT(m.measure(search, 1e-3).runs, 10);
  const PlanSearch::Result behind = m.measure(search, 1.4e-3);
  EXPECT_EQ(behind.runs, 2);
  EXPECT_FALSE(behind.dropped);
  EXPECT_GT(m.measure(search, 1.2e-3).runs, 10);
  PlanSearch of_short_ones(10, 10, m.clock());  // whose times differ by more
  m.measure(of_short_ones, 20e-6);
  EXPECT_GT(m.measure(of_short_ones, 39e-6).runs, 10);
}

TEST(PlanSearch, AFirstRunMayLoadKernels) {
  Machine m;
  PlanSearch search(10, 10, m.clock());
  m.measure(search, 1e-3);
  EXPECT_TRUE(m.measure(search, 0.5e-3, 0.05).fastest);
}

TEST(PlanSearch, GoesOnWithoutACandidateThatIsLeftOut) {
  Machine m;
  PlanSearch search(10, 10, m.clock());
  for (int i = 0; i < 3; ++i) m.measure(search, 1e-3);
  EXPECT_FALSE(search.cut_off());
  search.leave_out();
  EXPECT_FALSE(search.over());
  EXPECT_TRUE(m.measure(search, 0.5e-3).fastest);
  EXPECT_TRUE(search.cut_off());
}

TEST(PlanSearch, WhatIsRefusedIsNotTheFastest) {
  Machine m;
  PlanSearch search(0.25, 8, m.clock());
  const auto measure = [&](double seconds, bool accepted, int& asked) {
    const auto run = [&](int runs) {
      m.now += runs * seconds;
      return seconds;
    };
    return search.measure(run, [&] {
      ++asked;
      return accepted;
    });
  };
  int asked = 0;
  EXPECT_TRUE(measure(3e-3, true, asked).fastest);
  EXPECT_EQ(asked, 1);
  const PlanSearch::Result refused = measure(1e-3, false, asked);
  EXPECT_TRUE(refused.refused);
  EXPECT_FALSE(refused.fastest);
  EXPECT_EQ(asked, 2);
  EXPECT_FALSE(measure(4e-3, true, asked).fastest);  // no need to ask
  EXPECT_EQ(asked, 2);
  EXPECT_TRUE(m.measure(search, 2e-3).fastest);  // faster than what was accepted
  // Nor does it count as one of three that are measured before time is up.
  PlanSearch other(0.25, 8, m.clock());
  m.measure(other, 0.2);
  m.measure(other, 0.2);
  other.measure([](int) { return 1e-3; }, [] { return false; });
  m.now += 1;
  EXPECT_FALSE(other.over());
  m.measure(other, 0.2);
  EXPECT_TRUE(other.over());
}

TEST(PlanSearch, ItsClockStartsWithTheFirstCandidate) {
  Machine m;
  PlanSearch search(0.25, 8, m.clock());
  m.now += 100;  // libraries are loaded, a plan is built and fails
  EXPECT_FALSE(search.over());
  EXPECT_EQ(m.measure(search, 1e-3).runs, 14);
  m.measure(search, 1e-3);
  m.measure(search, 1e-3);
  EXPECT_FALSE(search.over());
  m.now += 0.3;
  EXPECT_TRUE(search.over());
  EXPECT_FALSE(search.cut_off());
}

TEST(PlanSearch, ACandidateSlowerThanTheBudgetRunsOnce) {
  Machine m;
  PlanSearch search(0.25, 8, m.clock());
  const PlanSearch::Result only = m.measure(search, 1.0);
  EXPECT_TRUE(only.fastest);
  EXPECT_EQ(only.runs, 1);
}

TEST(PlanSearch, MeasuresThreeBeforeItEnds) {
  Machine m;
  PlanSearch search(0.25, 8, m.clock());
  m.measure(search, 2);
  EXPECT_FALSE(search.over());
  EXPECT_TRUE(m.measure(search, 1).fastest);
  EXPECT_FALSE(search.over());
  EXPECT_TRUE(m.measure(search, 1e-3).fastest);
  EXPECT_TRUE(search.over());
  EXPECT_FALSE(search.cut_off());
}

TEST(PlanSearch, TheLatestEndCutsItOff) {
  Machine m;
  PlanSearch search(0.25, 1, m.clock());
  EXPECT_FALSE(search.over());  // never without a plan
  m.measure(search, 0.6);
  EXPECT_FALSE(search.over());
  m.measure(search, 0.5);
  EXPECT_TRUE(search.over());
  EXPECT_TRUE(search.cut_off());
}

/// The seconds that a network's searches take: `engines` candidates each, whose plans take `build` seconds.
/// `kept` counts the choices worth keeping.
double seconds_of_network(int operations, double build, double run, int& kept) {
  Machine m;
  PlanBudget budget(default_search_seconds, m.clock());
  for (int op = 0; op < operations; ++op) {
    PlanSearch search = budget.search();
    for (int engine = 0; engine < 16 && !search.over(); ++engine) {
      m.now += build;
      budget.begin();
      m.measure(search, run);
    }
    kept += search.cut_off() ? 0 : 1;
  }
  return m.now;
}

TEST(PlanBudget, EveryNetworkStartsWithin15Seconds) {
  for (const int operations : {10, 48, 131, 250})
    for (const double build : {1e-3, 0.01, 0.02})
      for (const double run : {1e-5, 1e-3, 5e-3}) {
        int kept = 0;
        EXPECT_LT(seconds_of_network(operations, build, run, kept), 15)
            << operations << " operations, " << build << " s to build a plan, " << run << " s to run it";
        EXPECT_GT(kept, 8);
      }
}

TEST(PlanBudget, FewOperationsSearchInFull) {
  Machine m;
  PlanBudget budget(default_search_seconds, m.clock());
  m.now = 1000;
  budget.begin();
  PlanSearch search = budget.search();
  m.measure(search, 1e-3);
  m.now += 0.15;
  m.measure(search, 1e-3);
  m.measure(search, 1e-3);
  EXPECT_FALSE(search.over());
}

TEST(PlanSearch, SlowCandidatesRunFewTimes) {
  Machine m;
  PlanSearch search(1, 1, m.clock());
  for (const double seconds : {1e-4, 0.3, 0.4, 0.2}) m.measure(search, seconds);
  EXPECT_LT(m.now, 1.0);
}

class PlanCacheTest : public testing::Test {
 private:
  const TestFolder made_;

 protected:
  const std::string folder_ = made_.path() + "/a/b";  // not there yet
};

TEST_F(PlanCacheTest, KeepsChoicesByDevice) {
  PlanCache cache(folder_, "GPU one, cuDNN 9");
  EXPECT_EQ(cache.find("conv 1 2"), std::nullopt);
  cache.add("conv 1 2", "engine 34");
  EXPECT_EQ(cache.find("conv 1 2"), "engine 34");
  cache.save();
  EXPECT_EQ(PlanCache(folder_, "GPU one, cuDNN 9").find("conv 1 2"), "engine 34");
  EXPECT_EQ(PlanCache(folder_, "GPU two, cuDNN 9").find("conv 1 2"), std::nullopt);
  EXPECT_EQ(PlanCache().find("conv 1 2"), std::nullopt);
}

TEST_F(PlanCacheTest, TheLongerSearchCounts) {
  PlanCache long_search(folder_, "GPU", 60), shorter(folder_, "GPU", 8.5), other(folder_, "GPU", 8.5);
  shorter.add("conv", "engine 1");
  shorter.save();
  EXPECT_EQ(PlanCache(folder_, "GPU", 8.5).find("conv"), "engine 1");
  EXPECT_EQ(PlanCache(folder_, "GPU", 60).find("conv"), std::nullopt);
  long_search.add("conv", "engine 2");
  long_search.save();
  other.add("conv", "engine 3");  // its search began before the long one's choice was written
  other.save();
  EXPECT_EQ(PlanCache(folder_, "GPU", 8.5).find("conv"), "engine 2");
  EXPECT_EQ(PlanCache(folder_, "GPU", 60).find("conv"), "engine 2");
}

TEST_F(PlanCacheTest, DamageLosesOnlyDamagedLines) {
  PlanCache cache(folder_, "GPU");
  for (int i = 0; i < 20; ++i) cache.add(fmt::format("conv {}", i), fmt::format("engine {}", 100 + i));
  cache.save();
  const std::string whole = read_file(cache.path());
  std::string text = whole;
  text[text.find("engine 107") + 8] = '9';
  std::ofstream(cache.path()) << text;
  const PlanCache damaged(folder_, "GPU");
  EXPECT_EQ(damaged.find("conv 7"), std::nullopt);
  EXPECT_EQ(damaged.find("conv 8"), "engine 108");
  // Whatever byte changes and wherever the file ends: no choice that was not made.
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string other = whole;
    other[at] = static_cast<char>(other[at] ^ (1 << (at % 7)));
    if (at % 3 == 0) other.resize(at);
    std::ofstream(cache.path()) << other;
    const PlanCache read(folder_, "GPU");
    for (int i = 0; i < 20; ++i)
      if (const auto found = read.find(fmt::format("conv {}", i))) {
        ASSERT_EQ(*found, fmt::format("engine {}", 100 + i));
      }
  }
  // And it can be written again.
  PlanCache again(folder_, "GPU");
  again.add("conv 7", "engine 1");
  again.save();
  EXPECT_EQ(PlanCache(folder_, "GPU").find("conv 7"), "engine 1");
}

TEST_F(PlanCacheTest, WritersAddToEachOther) {
  std::vector<std::thread> writers;
  for (int w = 0; w < 4; ++w)
    writers.emplace_back([&, w] {
      for (int i = 0; i < 20; ++i) {
        PlanCache cache(folder_, "GPU");
        cache.add(fmt::format("conv {} {}", w, i), "engine 1");
        cache.save();
        for (int j = 0; j < i; ++j) (void)cache.find(fmt::format("conv {} {}", w, j));
      }
    });
  for (std::thread& t : writers) t.join();
  const PlanCache cache(folder_, "GPU");
  int found = 0;
  for (int w = 0; w < 4; ++w)
    for (int i = 0; i < 20; ++i) found += cache.find(fmt::format("conv {} {}", w, i)) == "engine 1";
  EXPECT_EQ(found, 4 * 20);
  for (const auto& entry : std::filesystem::directory_iterator(folder_))
    EXPECT_EQ(entry.path().extension(), ".txt") << entry.path();
}

TEST_F(PlanCacheTest, AFolderThatCannotBeWrittenIsNoError) {
  PlanCache cache("/proc/nothing", "GPU");
  cache.add("conv", "engine 1");
  cache.save();
  EXPECT_EQ(cache.find("conv"), "engine 1");
}

TEST(CacheFolder, FollowsTheEnvironment) {
  const auto set = [](const char* name, const char* to) { to ? setenv(name, to, 1) : unsetenv(name); };
  const char *xdg = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  const std::string old_xdg = xdg ? xdg : "", old_home = home ? home : "";
  set("XDG_CACHE_HOME", "/somewhere");
  EXPECT_EQ(cache_folder(), "/somewhere/lpsgd");
  set("XDG_CACHE_HOME", "relative");
  set("HOME", "/home/someone");
  EXPECT_EQ(cache_folder(), "/home/someone/.cache/lpsgd");
  set("HOME", nullptr);
  EXPECT_EQ(cache_folder(), "");
  set("XDG_CACHE_HOME", xdg ? old_xdg.c_str() : nullptr);
  set("HOME", home ? old_home.c_str() : nullptr);
}

}  // namespace
}  // namespace lpsgd
