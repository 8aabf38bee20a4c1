// Networks whose searches for algorithms store their choices in a folder of the test's own.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/file.h"
#include "nn/network.h"
#include "nn/plan_search.h"
#include "tests/core/gpu_test.h"
#include "tests/core/temporary_folder.h"

namespace lpsgd {

class PlanSearchGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (const char* old = std::getenv("XDG_CACHE_HOME")) old_ = old;
    setenv("XDG_CACHE_HOME", folder_.c_str(), 1);
  }
  void TearDown() override {
    for (const char* name :
         {"LPSGD_EMULATED_MISSING_ENGINES", "LPSGD_EMULATED_MISSING_LAYOUTS", "LPSGD_EMULATED_SLOW_ENGINES",
          "LPSGD_EMULATED_SLOW_ALGORITHMS", "LPSGD_EMULATED_SLOW_HEURISTICS", "LPSGD_EMULATED_SLOW_LAYOUTS",
          "LPSGD_EMULATED_SLOW_STRIDES", "LPSGD_EMULATED_LOST_BITS", "NVIDIA_TF32_OVERRIDE"})
      unsetenv(name);
    old_.empty() ? unsetenv("XDG_CACHE_HOME") : setenv("XDG_CACHE_HOME", old_.c_str(), 1);
  }

  static constexpr const char* two_convolutions =
      "  - {conv: c1, filters: 8, kernel: 3, pad: 1}\n  - relu\n"
      "  - {conv: c2, filters: 8, kernel: 3, bias: false}\n  - flatten\n  - {dense: f, units: 4}\n";
  std::vector<std::string> choices(bool deterministic = false, const char* layers = two_convolutions,
                                   double search_seconds = default_search_seconds) {
    const NetworkSpec spec(
        config::parse_text(std::string("input: [8, 8, 3]\nclasses: 4\nlayers:\n") + layers, "net.yaml"));
    const double begin = now_seconds();
    Network network(
        spec,
        {.batch = 4, .device = device, .deterministic = deterministic, .search_seconds = search_seconds});
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

  static bool is_emulated() { return cuda_device_info(0).name.find("emulates") != std::string::npos; }
  /// Changes every stored choice with `change`, and the checksums with them.
  void rewrite(const std::function<std::string(std::string)>& change) {
    ASSERT_EQ(files().size(), 1u);
    std::istringstream text(read_file(files()[0]));
    std::string line, device_line;
    std::getline(text, line);
    std::getline(text, device_line);
    PlanCache cache(folder_ + "/lpsgd", device_line);
    ASSERT_EQ(cache.path(), files()[0]);
    int changed = 0;
    while (std::getline(text, line)) {
      const std::size_t colon = line.find(": ");
      const std::string before = line.substr(line.find(' ', colon + 2) + 1), after = change(before);
      changed += after != before;
      cache.add(line.substr(17, colon - 17), after);
    }
    EXPECT_GT(changed, 0);
    cache.save();
  }
  static std::string replaced(std::string text, const std::string& from, const std::string& to) {
    if (const std::size_t at = text.find(from); at != std::string::npos) text.replace(at, from.size(), to);
    return text;
  }

  const TestFolder made_;
  const std::string folder_ = made_.path();
  std::string old_;
  double seconds_ = 0;
};

}  // namespace lpsgd
