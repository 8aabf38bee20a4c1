#include "trainer/step_agreement.h"

#include <gtest/gtest.h>

#include <csignal>
#include <limits>
#include <vector>

#include "trainer/non_finite.h"
#include "trainer/resume_command.h"

namespace lpsgd {
namespace {

/// The steps after which two ranks ask, with steps of `seconds(i)` on rank 0. Rank 1's clock runs otherwise.
template <class Seconds>
std::vector<int> asked(
    int steps, Seconds seconds, bool (*exchanging)(int) = [](int) { return false; }) {
  std::vector<int> out[2];
  run_thread_ranks(2, [&](Transport& transport) {
    StepAgreement agreement(transport, 1);
    double now = 5;
    agreement.ask(now, {});
    const bool first = transport.rank() == 0;
    for (int i = 1; i <= steps; ++i) {
      now += first ? seconds(i) : 7;
      if (agreement.after_step(now, {.save = true}, exchanging(i)).save) out[transport.rank()].push_back(i);
    }
  });
  EXPECT_EQ(out[0], out[1]);
  return out[0];
}

TEST(StepAgreement, AsksOnceASecondOfRank0) {
  EXPECT_EQ(asked(47, [](int) { return 0.099; }), (std::vector<int>{1, 3, 7, 15, 25, 35, 45}));
  EXPECT_EQ(asked(4, [](int) { return 3.0; }), (std::vector<int>{1, 2, 3, 4})) << "slow steps: after each";
  EXPECT_EQ(asked(16, [](int i) { return i <= 7 ? 0.01 : 1.0; }), (std::vector<int>{1, 3, 7, 15, 16}))
      << "steps that become slow";
}

TEST(StepAgreement, WaitsForAnExchangeBesideSteps) {
  const auto slow = [](int) { return 2.0; };
  EXPECT_EQ(asked(12, slow, [](int i) { return i % 4 != 0; }), (std::vector<int>{1, 4, 8, 12}));
  EXPECT_EQ(asked(35, slow, [](int) { return true; }), (std::vector<int>{1, 11, 21, 31})) << "not for ever";
  const auto slower = [](int) { return 7.0; };
  EXPECT_EQ(asked(12, slower, [](int) { return true; }), (std::vector<int>{1, 5, 9})) << "nor for long";
  const auto quick = [](int) { return 0.25; };
  EXPECT_EQ(asked(24, quick, [](int i) { return i % 5 != 0; }), (std::vector<int>{1, 5, 10, 15, 20}));
}

TEST(StepAgreement, CanBeAskedToAskSoon) {
  run_thread_ranks(2, [](Transport& transport) {
    StepAgreement agreement(transport, 1);
    double now = 0;
    const auto steps_until_asked = [&] {
      for (int steps = 1;; ++steps)
        if (agreement.after_step(now += 0.001, {.save = true}).save) return steps;
    };
    for (const int expected : {1, 2, 4, 8}) EXPECT_EQ(steps_until_asked(), expected);
    agreement.ask_soon();
    agreement.ask(now, {});
    for (const int expected : {1, 2, 4}) EXPECT_EQ(steps_until_asked(), expected);
  });
}

TEST(StepAgreement, TheRanksAreBusyAsLongAsOneIs) {
  run_thread_ranks(3, [](Transport& transport) {
    StepAgreement agreement(transport);
    EXPECT_TRUE(agreement.ask(1, {.busy = transport.rank() == 1}).busy);
    EXPECT_FALSE(agreement.ask(1, {}).busy);
    EXPECT_FALSE(agreement.after_step(1, {}).busy);
    EXPECT_TRUE(agreement.after_step(1, {}).busy) << "nobody has asked";
  });
}

TEST(StepAgreement, SignalsOfAnyRankReachAllAndSavingIsRank0s) {
  run_thread_ranks(3, [](Transport& transport) {
    StepAgreement agreement(transport);
    const bool last = transport.rank() == 2;
    Agreed agreed = agreement.after_step(1, {.signal = last ? SIGTERM : 0, .save = last});
    EXPECT_EQ(agreed.signal, SIGTERM);
    EXPECT_FALSE(agreed.save);
    agreed = agreement.ask(1, {.save = transport.rank() == 0});
    EXPECT_EQ(agreed.signal, 0);
    EXPECT_TRUE(agreed.save);
  });
}

TEST(AllFinite, SeesEveryKind) {
  std::vector<float> v(1000, -std::numeric_limits<float>::max());
  v[3] = std::numeric_limits<float>::denorm_min();
  EXPECT_TRUE(all_finite(v));
  EXPECT_TRUE(all_finite({}));
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()})
    for (const std::size_t at : {0u, 500u, 999u}) {
      std::vector<float> w = v;
      w[at] = bad;
      EXPECT_FALSE(all_finite(w)) << bad << " at " << at;
    }
}

TEST(ResumeCommand, AddsWhatIsMissing) {
  const std::vector<std::string> words{"lpsgd", "train", "a b.yaml", "--set", "x='y'"};
  EXPECT_EQ(resume_command(words, "runs/a", {}),
            "lpsgd train 'a b.yaml' --set 'x='\\''y'\\''' --out runs/a --resume");
  EXPECT_EQ(resume_command({"lpsgd", "train", "c", "--resume-required", "--out=o"}, "o", {}),
            "lpsgd train c --resume-required --out=o");
  EXPECT_EQ(resume_command({"lpsgd", "train", "c", "--outer", "--resume", "--out", "o"}, "o", {"srun", 0, 4}),
            "srun -n 4 lpsgd train c --outer --resume --out o");
  const std::string mpi = resume_command({"lpsgd", "--out", "o", "--resume"}, "o", {"MPICH's mpirun", 0, 3});
  EXPECT_TRUE(mpi.ends_with(" -n 3 lpsgd --out o --resume")) << mpi;
  EXPECT_NE(mpi.find("mpi"), std::string::npos);
}

}  // namespace
}  // namespace lpsgd
