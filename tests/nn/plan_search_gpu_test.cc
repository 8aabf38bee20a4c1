// The search for convolutions' engines in a network, and the choices that later networks take over.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "nn/optimizer.h"
#include "tests/nn/plan_search_fixture.h"

namespace lpsgd {
namespace {

TEST_F(PlanSearchGpu, TheNextNetworkTakesTheChoicesOver) {
  const std::vector<std::string> first = choices();
  ASSERT_EQ(files().size(), 1u);
  const std::string text = read_file(files()[0]);
  EXPECT_EQ(choices(), first);
  EXPECT_EQ(read_file(files()[0]), text);
}

TEST_F(PlanSearchGpu, TheWorkspaceIsWhatTheChosenPlansNeed) {
  if (!is_emulated()) GTEST_SKIP() << "needs the emulated GPU";
  // Of its engines 1 takes 64 KiB of workspace, 6 takes 4 KiB, and the others that fp32 may use take none.
  // Those that transform their operands are left out where 6 is to be taken. Plans in NCHW take more, for
  // their tensors, and are slow here.
  setenv("LPSGD_EMULATED_SLOW_LAYOUTS", "1=0.05", 1);
  struct Case {
    Compute compute;
    bool deterministic;
    const char* missing;
    std::size_t bytes;
  };
  const auto memory = [&](const Case& c, Branches branches) {
    setenv("LPSGD_EMULATED_MISSING_ENGINES", c.missing, 1);
    std::filesystem::remove_all(folder_ + "/lpsgd");
    const std::size_t before = device_memory_use(device).current;
    reset_device_memory_peak(device);
    DeviceMemoryUse use;
    {
      const NetworkSpec spec(config::parse_text(
          std::string("input: [8, 8, 3]\nclasses: 4\nlayers:\n") + two_convolutions, "net.yaml"));
      Network network(spec, {.batch = 4,
                             .compute = c.compute,
                             .device = device,
                             .deterministic = c.deterministic,
                             .branches = branches});
      use = device_memory_use(device);
      const std::size_t values = network.parameters().size();
      const Optimizer optimizer({.momentum = 0.9}, network.tensors(), values, network.stream());
      EXPECT_GE(device_memory_use(device).current, use.current + 4 * values);
    }
    EXPECT_EQ(device_memory_use(device).current, before);
    return DeviceMemoryUse{use.current - before, use.peak - before};
  };
  const Case none{Compute::fp32, false, "6=1", 1};  // one byte, so that there is a pointer
  for (const Branches branches : {Branches::never, Branches::always}) {
    const std::size_t workspaces = branches == Branches::never ? 1 : 2;  // branch 1 has its own
    const std::size_t without = memory(none, branches).current - workspaces * none.bytes;
    for (const Case& c : {Case{Compute::fp32, false, "4=1,5=1,7=1", 4096},
                          {Compute::fp32, true, "", 4096},
                          {Compute::tf32, true, "", 65536}}) {
      const DeviceMemoryUse use = memory(c, branches);
      EXPECT_EQ(use.current, without + workspaces * c.bytes)
          << static_cast<int>(c.compute) << c.deterministic;
      // A deterministic network has the largest workspace while it plans.
      if (c.deterministic) {
        EXPECT_GE(use.peak, use.current + (std::size_t{64} << 20) - workspaces * c.bytes);
      } else {
        EXPECT_LE(use.peak, use.current + 65536);
      }
    }
  }
}

TEST_F(PlanSearchGpu, ADamagedFileIsSearchedAnew) {
  const std::size_t first = choices().size();
  ASSERT_EQ(files().size(), 1u);
  for (const char* text : {"", "lpsgd plans 1\n", "\n\n\xff\xfe : : \n"}) {
    std::ofstream(files()[0]) << text;
    EXPECT_EQ(choices().size(), first);
  }
  const std::filesystem::path path = files()[0];
  std::filesystem::remove(path);
  std::filesystem::create_directories(path / "x");
  EXPECT_EQ(choices().size(), first);
}

TEST_F(PlanSearchGpu, DeterministicNetworksNeitherReadNorWriteIt) {
  choices(true);
  EXPECT_TRUE(files().empty());
}

TEST_F(PlanSearchGpu, TimeToFindEnginesDoesNotEndTheSearch) {
  if (!is_emulated()) GTEST_SKIP() << "needs the emulated GPU";
  setenv("LPSGD_EMULATED_MISSING_ENGINES", "4=1,7=1", 1);  // those with a transform
  setenv("LPSGD_EMULATED_SLOW_HEURISTICS", "0=1.1", 1);
  setenv("LPSGD_EMULATED_SLOW_ENGINES", "5=0.05", 1);
  const std::vector<std::string> found = choices(
      false, "  - {conv: c1, filters: 8, kernel: 3, bias: false}\n  - flatten\n  - {dense: f, units: 4}\n");
  EXPECT_EQ(count(found, "engine 5"), 0);
  EXPECT_EQ(count(found, "engine 6"), 2);
}

/// In NHWC, so that the one that is not slow is taken.
void only_engines_5_and_6() {
  setenv("LPSGD_EMULATED_MISSING_ENGINES", "4=1,7=1", 1);
  setenv("LPSGD_EMULATED_MISSING_LAYOUTS", "1=1", 1);
}

TEST_F(PlanSearchGpu, AStoredEngineIsTakenThoughItIsSlow) {
  if (!is_emulated()) GTEST_SKIP() << "needs the emulated GPU";
  only_engines_5_and_6();
  setenv("LPSGD_EMULATED_SLOW_ENGINES", "6=0.05", 1);
  const int convolutions = count(choices(), "convolution");
  EXPECT_GT(convolutions, 2);
  // cuDNN names engines 5 and 6 one after the other.
  rewrite([](std::string choice) {
    if (choice.find("engine 5, 2=50") == std::string::npos) return choice;
    const std::size_t position = choice.find(' ') + 1;
    choice[position] = static_cast<char>(choice[position] + 1);
    return replaced(std::move(choice), "engine 5, 2=50", "engine 6, 2=60");
  });
  const std::string text = read_file(files()[0]);
  EXPECT_EQ(count(choices(), "engine 6"), convolutions);
  EXPECT_EQ(read_file(files()[0]), text);
}

TEST_F(PlanSearchGpu, AnEngineWithOtherKnobsIsSearchedAnew) {
  if (!is_emulated()) GTEST_SKIP() << "needs the emulated GPU";
  only_engines_5_and_6();
  setenv("LPSGD_EMULATED_SLOW_ENGINES", "6=0.05", 1);
  choices();
  const std::string right = read_file(files()[0]);
  rewrite([](std::string choice) { return replaced(std::move(choice), "engine 5, 2=50", "engine 5, 2=51"); });
  ASSERT_NE(read_file(files()[0]), right);
  setenv("LPSGD_EMULATED_SLOW_ENGINES", "5=0.05", 1);
  EXPECT_EQ(count(choices(), "engine 5"), 0);
}

TEST_F(PlanSearchGpu, AStoredAlgorithmIsTakenAndTheFileStays) {
  if (!is_emulated()) GTEST_SKIP() << "needs the emulated GPU";
  setenv("LPSGD_EMULATED_SLOW_ALGORITHMS", "2=0.05,3=0.05,4=0.05,5=0.05", 1);
  const int products = count(choices(), "algorithm 1");
  EXPECT_GT(products, 1);
  rewrite([](std::string choice) { return replaced(std::move(choice), "1 algorithm 1", "2 algorithm 2"); });
  const std::filesystem::path path = files()[0];
  const std::string text = read_file(path);
  const auto written = std::filesystem::last_write_time(path);
  EXPECT_EQ(count(choices(), "algorithm 2"), products);
  EXPECT_EQ(read_file(path), text);
  EXPECT_EQ(std::filesystem::last_write_time(path), written);
}

TEST_F(PlanSearchGpu, AStoredAlgorithmThatIsNotThereIsSearchedAnew) {
  if (!is_emulated()) GTEST_SKIP() << "needs the emulated GPU";
  const auto slow = [](const char* which) { setenv("LPSGD_EMULATED_SLOW_ALGORITHMS", which, 1); };
  slow("2=0.05,3=0.05,4=0.05,5=0.05");
  const int products = count(choices(), "algorithm 1");
  rewrite([](std::string choice) { return replaced(std::move(choice), "1 algorithm 1", "9 algorithm 9"); });
  slow("1=0.05,3=0.05,4=0.05,5=0.05");
  EXPECT_EQ(count(choices(), "algorithm 2"), products);
}

TEST_F(PlanSearchGpu, ChoicesWithoutTF32HaveAFileOfTheirOwn) {
  choices();
  setenv("NVIDIA_TF32_OVERRIDE", "0", 1);
  choices();
  EXPECT_EQ(files().size(), 2u);
}

TEST_F(PlanSearchGpu, SlowEnginesAreDropped) {
  if (!is_emulated()) GTEST_SKIP() << "needs the emulated GPU";
  // Engines 5 and 6 are those that fp32 may take without a transform. Thirteen runs of each would take 20
  // seconds and more.
  setenv("LPSGD_EMULATED_MISSING_ENGINES", "4=1,7=1", 1);
  setenv("LPSGD_EMULATED_SLOW_ENGINES", "6=0.2", 1);
  const std::vector<std::string> late = choices();
  EXPECT_LT(seconds_, 10);
  EXPECT_EQ(count(late, "engine 6"), 0);
  std::filesystem::remove_all(folder_ + "/lpsgd");
  setenv("LPSGD_EMULATED_SLOW_ENGINES", "5=0.2", 1);
  const std::vector<std::string> early = choices();
  EXPECT_LT(seconds_, 10);
  EXPECT_EQ(count(early, "engine 5"), 0);
  EXPECT_GT(count(early, "engine 6"), 0);
}

TEST_F(PlanSearchGpu, ALongerSearchFindsMoreAndShorterOnesTakeItOver) {
  if (!is_emulated()) GTEST_SKIP() << "needs the emulated GPU";
  setenv("LPSGD_EMULATED_MISSING_ENGINES", "4=1,7=1", 1);
  setenv("LPSGD_EMULATED_SLOW_ENGINES", "5=0.01", 1);
  const auto with = [&](double seconds) { return choices(false, two_convolutions, seconds); };
  EXPECT_GT(count(with(0), "engine 5"), 0);  // the first one
  const std::vector<std::string> found = with(default_search_seconds);
  EXPECT_EQ(count(found, "engine 5"), 0);
  EXPECT_EQ(with(0), found);
  // A choice from less time is searched anew.
  setenv("LPSGD_EMULATED_SLOW_ENGINES", "6=0.01", 1);
  EXPECT_EQ(with(default_search_seconds), found);
  EXPECT_EQ(count(with(default_search_seconds + 1), "engine 6"), 0);
}

TEST_F(PlanSearchGpu, ASecondStartRunsNoOtherEngine) {
  if (!is_emulated()) GTEST_SKIP() << "needs the emulated GPU";
  setenv("LPSGD_EMULATED_SLOW_ENGINES", "6=0.02", 1);
  const std::vector<std::string> first = choices();
  setenv("LPSGD_EMULATED_SLOW_ENGINES", "6=1", 1);
  EXPECT_EQ(choices(), first);
  EXPECT_LT(seconds_, 1);
}

class OwnConvolutionsGpu : public PlanSearchGpu {
 protected:
  void SetUp() override {
    PlanSearchGpu::SetUp();
    if (IsSkipped()) return;
    if (!is_emulated()) GTEST_SKIP() << "needs the emulated GPU";
  }
  /// The choices of a network in bfloat16, of which our kernels cover the second convolution alone.
  /// `between`: a layer.
  std::vector<std::string> low_choices(bool deterministic = false, const std::string& between = "") {
    const NetworkSpec spec(
        config::parse_text("input: [4, 4, 3]\nclasses: 4\nlayers:\n  - {conv: c1, filters: 16, kernel: 5, "
                           "pad: 2, bias: false}\n" +
                               between +
                               "  - {conv: c2, filters: 32, kernel: 3, pad: 1}\n  - relu\n  - flatten\n  - "
                               "{dense: f, units: 4}\n",
                           "net.yaml"));
    const Network network(
        spec, {.batch = 2, .compute = Compute::bf16, .device = device, .deterministic = deterministic});
    return network.choices();
  }
  static constexpr const char* own = "own 3x3 kernel";
  static constexpr const char* all_slow = "0=0.3,1=0.3,2=0.3,3=0.3,4=0.3,5=0.3,6=0.3,7=0.3,8=0.3";
};

TEST_F(OwnConvolutionsGpu, AreTakenWhereTheyAreFaster) {
  setenv("LPSGD_EMULATED_SLOW_ENGINES", all_slow, 1);
  const std::vector<std::string> found = low_choices();
  EXPECT_EQ(count(found, own), 3);
  EXPECT_EQ(count(found, "engine"), 2);  // the first convolution's input needs no gradient
  // Stored, and taken without a search.
  ASSERT_EQ(files().size(), 1u);
  const std::string text = read_file(files()[0]);
  EXPECT_NE(text.find(own), std::string::npos);
  unsetenv("LPSGD_EMULATED_SLOW_ENGINES");
  EXPECT_EQ(low_choices(), found);
  EXPECT_EQ(read_file(files()[0]), text);
}

TEST_F(OwnConvolutionsGpu, ANameThatIsNotKnownIsSearchedAnew) {
  setenv("LPSGD_EMULATED_SLOW_ENGINES", all_slow, 1);
  EXPECT_EQ(count(low_choices(), own), 3);
  rewrite([](std::string choice) { return replaced(std::move(choice), own, "own kernel of old"); });
  EXPECT_EQ(count(low_choices(), own), 3);
}

TEST_F(OwnConvolutionsGpu, JoinTheNormBeforeThemAsStored) {
  setenv("LPSGD_EMULATED_SLOW_ENGINES", all_slow, 1);
  const std::string norm = "  - {batch_norm: n}\n";
  const auto joined_and_separate = [&] {
    const std::vector<std::string> found = low_choices(false, norm);
    return std::pair{count(found, ": joined"), count(found, ": separate")};
  };
  const auto [joined, separate] = joined_and_separate();
  EXPECT_EQ(joined + separate, 2);  // forward and the weights' gradient together, and the input's gradient
  const auto store = [&](const std::string& way) {
    rewrite([&](const std::string& choice) {
      return choice == "joined" || choice == "separate" || choice == "as of old" ? way : choice;
    });
  };
  store("as of old");  // not known
  const auto [joined_again, separate_again] = joined_and_separate();
  EXPECT_EQ(joined_again + separate_again, 2);
  store("joined");
  EXPECT_EQ(joined_and_separate(), (std::pair{2, 0}));
  store("separate");
  EXPECT_EQ(joined_and_separate(), (std::pair{0, 2}));
}

TEST_F(OwnConvolutionsGpu, AreTakenByAFixedRuleIfDeterministic) {
  const std::vector<std::string> found = low_choices(true);
  EXPECT_EQ(count(found, own), 3);
  EXPECT_TRUE(files().empty());
}

}  // namespace
}  // namespace lpsgd
