#include "trainer/rank_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "comm/agree.h"
#include "core/file.h"
#include "tests/trainer/small_run.h"

namespace lpsgd {
namespace {

TEST(RankTrace, WritesOneFilePerRank) {
  const TestFolder folder;
  const std::string path = folder.path() + "/deep/trace";
  run_thread_ranks(2, [&](Transport& transport) {
    const RankTrace trace(path);
    trace.prepare(transport);
    EXPECT_TRUE(std::filesystem::is_directory(path));
    const StepTrace steps(*trace.get());
    steps.add_micro_batch({.step = 1, .begin = 1, .data = 1.5, .forward = 1.75, .backward = 1.875});
    steps.add(7,
              {.step = 1, .begin = 2, .data = 3, .forward = 5, .backward = 8, .exposed = 12, .update = 17});
    trace.write(transport);
  });
  for (int rank = 0; rank < 2; ++rank) {
    const auto json = nlohmann::json::parse(read_file(fmt::format("{}/rank000{}.json", path, rank)));
    EXPECT_EQ(json["distributedInfo"]["rank"], rank);
    std::map<std::string, double> seconds;
    for (const auto& event : json["traceEvents"])
      if (event["ph"] == "X") seconds[event["name"]] += event["dur"].get<double>() * 1e-6;
    EXPECT_THAT(seconds,
                testing::ElementsAre(testing::Pair("ProfilerStep#7", 16), testing::Pair("backward", 3.125),
                                     testing::Pair("data", 1.5), testing::Pair("exposed communication", 4),
                                     testing::Pair("forward", 2.25), testing::Pair("update", 5)));
  }
}

TEST(RankTrace, AnUpdateBeforeTheExchangeIsNoCommunication) {
  const TestFolder folder;
  run_thread_ranks(1, [&](Transport& transport) {
    const RankTrace trace(folder.path());
    const StepTrace steps(*trace.get());
    steps.add(7, {.step = 1,
                  .begin = 1,
                  .data = 2,
                  .forward = 4,
                  .backward = 7,
                  .exposed = 11,
                  .update = 16,
                  .sending = 9});
    trace.write(transport);
  });
  const auto json = nlohmann::json::parse(read_file(folder.path() + "/rank0000.json"));
  std::map<std::string, double> seconds;
  for (const auto& event : json["traceEvents"])
    if (event["ph"] == "X") seconds[event["name"]] += event["dur"].get<double>() * 1e-6;
  EXPECT_EQ(seconds["exposed communication"], 2);
  EXPECT_EQ(seconds["update"], 2 + 5);
}

TEST(RankTrace, WithoutAFolderThereIsNone) {
  run_thread_ranks(1, [](Transport& transport) {
    const RankTrace trace("");
    EXPECT_EQ(trace.get(), nullptr);
    trace.prepare(transport);
    trace.write(transport);
  });
}

TEST(RankTrace, AFolderThatCannotBeMadeIsRefusedOnAllRanks) {
  const TestFolder folder;
  std::ofstream(folder.path() + "/file") << "no folder";
  const std::string path = folder.path() + "/file/trace";
  run_thread_ranks(2, [&](Transport& transport) {
    const RankTrace trace(path);
    try {
      trace.prepare(transport);
      ADD_FAILURE() << "no error";
    } catch (const SharedError& e) {
      EXPECT_EQ(std::string(e.what()), fmt::format("--trace {}: cannot be made: Not a directory", path));
    }
  });
}

}  // namespace
}  // namespace lpsgd
