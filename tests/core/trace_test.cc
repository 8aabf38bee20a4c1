// Traces: the file that is written, and what happens when a trace is full.
#include "core/trace.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "tests/core/temporary_folder.h"

namespace lpsgd {
namespace {

std::string written(Trace& trace, int rank, int ranks) {
  const TestFolder folder;
  const std::string path = folder.path() + "/trace.json";
  trace.write(path, rank, ranks);
  return read_file(path);
}

TEST(Trace, WritesTracksAndSpans) {
  Trace trace(8);
  const Trace::Track compute = trace.track("compute"), odd = trace.track("a \"quoted\"\n\xff name");
  const Trace::Label step = trace.label("step #", "step"), kernel = trace.label("encode", "kernel");
  trace.span(compute, step, 1.25, 1.5, 7);
  trace.span(odd, kernel, 3.0000004, 2.0);  // it cannot end before it begins
  const std::string text = written(trace, 1, 3);
  EXPECT_NE(text.find("\"rank\": 1"), std::string::npos);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["distributedInfo"]["world_size"], 3);
  const auto& events = json["traceEvents"];
  ASSERT_EQ(events.size(), 7u);  // the process, two for each track, two spans
  EXPECT_EQ(events[0]["args"]["name"], "rank 1");
  EXPECT_EQ(events[1]["args"]["name"], "compute");
  EXPECT_EQ(events[2]["args"]["sort_index"], 0);
  EXPECT_EQ(events[3]["args"]["name"], "a \"quoted\"\n\xef\xbf\xbd name");
  EXPECT_EQ(events[5], (nlohmann::json{{"ph", "X"},
                                       {"cat", "step"},
                                       {"name", "step #7"},
                                       {"pid", 1},
                                       {"tid", 0},
                                       {"ts", 1250000.0},
                                       {"dur", 250000.0},
                                       {"args", {{"number", 7}}}}));
  EXPECT_EQ(events[6]["args"], (nlohmann::json{{"stream", 1}}));
  EXPECT_EQ(events[6]["ts"], 3000000.4);
  EXPECT_EQ(events[6]["dur"], 0.0);
}

TEST(Trace, DropsAndCountsWhatDoesNotFit) {
  Trace trace(2);
  const Trace::Track track = trace.track("t");
  const Trace::Label label = trace.label("l", "c");
  for (int i = 0; i < 5; ++i) trace.span(track, label, i, i + 1);
  EXPECT_EQ(trace.dropped(), 3u);
  EXPECT_EQ(nlohmann::json::parse(written(trace, 0, 1))["traceEvents"].size(), 5u);
}

/// More text than is written at a time.
TEST(Trace, WritesLargeFiles) {
  constexpr std::size_t spans = 30'000;
  Trace trace(spans);
  const Trace::Track track = trace.track("t");
  const Trace::Label label = trace.label("span #", "c");
  for (std::size_t i = 0; i < spans; ++i)
    trace.span(track, label, 1e6 + static_cast<double>(i), 1e6 + static_cast<double>(i) + 0.5,
               static_cast<std::int64_t>(i));
  const auto json = nlohmann::json::parse(written(trace, 0, 1));
  ASSERT_EQ(json["traceEvents"].size(), spans + 3);
  for (std::size_t i = 0; i < spans; ++i) ASSERT_EQ(json["traceEvents"][i + 3]["args"]["number"], i);
}

TEST(Trace, AsksItsSourcesBeforeItIsWritten) {
  Trace trace(4);
  const Trace::Track track = trace.track("t");
  const Trace::Label label = trace.label("l", "c");
  const std::size_t one = trace.add_source([&] { trace.span(track, label, 1, 2); });
  const std::size_t two = trace.add_source([&] { trace.span(track, label, 3, 4); });
  trace.remove_source(two);
  EXPECT_NE(one, two);
  EXPECT_EQ(nlohmann::json::parse(written(trace, 0, 1))["traceEvents"].size(), 3u + 1);
}

TEST(Trace, FailsWhereTheFileCannotBeWritten) {
  Trace trace(1);
  EXPECT_THROW(trace.write("/nonexistent/trace.json", 0, 1), FileError);
  if (std::filesystem::exists("/dev/full")) {
    EXPECT_THROW(trace.write("/dev/full", 0, 1), FileError);
  }
}

}  // namespace
}  // namespace lpsgd
