// The search for convolutions' engines in a network, and the choices that later networks take over.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/clock.h"
#include "core/file.h"
#include "nn/network.h"
#include "tests/core/gpu_test.h"

namespace lpsgd {
namespace {

class PlanSearchGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    char name[] = "/tmp/lpsgd-plans-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    if (const char* old = std::getenv("XDG_CACHE_HOME")) old_ = old;
    setenv("XDG_CACHE_HOME", name, 1);
  }
  void TearDown() override {
    unsetenv("LPSGD_EMULATED_SLOW_ENGINES");
    old_.empty() ? unsetenv("XDG_CACHE_HOME") : setenv("XDG_CACHE_HOME", old_.c_str(), 1);
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  std::vector<std::string> choices(bool deterministic = false) {
    const NetworkSpec spec(config::parse_text(
        "input: [8, 8, 3]\nclasses: 4\nlayers:\n  - {conv: c1, filters: 8, kernel: 3, pad: 1}\n  - relu\n"
        "  - {conv: c2, filters: 8, kernel: 3, bias: false}\n  - flatten\n  - {dense: f, units: 4}\n",
        "net.yaml"));
    const double begin = now_seconds();
    Network network(spec, {.batch = 4, .device = device, .deterministic = deterministic});
    seconds_ = now_seconds() - begin;
    return network.choices();
  }
  std::vector<std::filesystem::path> files() {
    std::vector<std::filesystem::path> out;
    if (std::filesystem::exists(folder_ + "/lpsgd"))
      for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/lpsgd"))
        out.push_back(entry.path());
    return out;
  }
  static int count(const std::vector<std::string>& choices, const std::string& text) {
    int out = 0;
    for (const std::string& c : choices) out += c.find(text) != std::string::npos ? 1 : 0;
    return out;
  }

  std::string folder_, old_;
  double seconds_ = 0;
};

TEST_F(PlanSearchGpu, TheNextNetworkTakesTheChoicesOver) {
  const std::vector<std::string> first = choices();
  ASSERT_EQ(files().size(), 1u);
  const std::string text = read_file(files()[0]);
  EXPECT_EQ(choices(), first);
  EXPECT_EQ(read_file(files()[0]), text);
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

TEST_F(PlanSearchGpu, SlowEnginesAreDropped) {
  if (cuda_device_info(0).name.find("emulates") == std::string::npos)
    GTEST_SKIP() << "needs the emulated GPU";
  // Engines 5 and 6 are those that fp32 may take. Thirteen runs of each would take 20 seconds and more.
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

TEST_F(PlanSearchGpu, ASecondStartRunsNoOtherEngine) {
  if (cuda_device_info(0).name.find("emulates") == std::string::npos)
    GTEST_SKIP() << "needs the emulated GPU";
  setenv("LPSGD_EMULATED_SLOW_ENGINES", "6=0.02", 1);
  const std::vector<std::string> first = choices();
  setenv("LPSGD_EMULATED_SLOW_ENGINES", "6=1", 1);
  EXPECT_EQ(choices(), first);
  EXPECT_LT(seconds_, 1);
}

}  // namespace
}  // namespace lpsgd
