#include "trainer/seconds.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace lpsgd {
namespace {

/// Every field has a value of its own: `first`, first + 1, ... in the order of their declaration.
Seconds counted(double first) {
  return {first,     first + 1, first + 2, first + 3, first + 4, first + 5,
          first + 6, first + 7, first + 8, first + 9, first + 10};
}

TEST(Seconds, TheListHasEveryFieldOnce) {
  const Seconds s = counted(1);
  std::set<double> found;
  std::set<std::string> names;
  for (const SecondsField& f : seconds_fields) {
    found.insert(s.*f.value);
    names.insert(f.name);
  }
  EXPECT_EQ(found.size(), 11u);
  EXPECT_EQ(names.size(), 11u);
}

TEST(Seconds, AddsEveryField) {
  Seconds s = counted(1);
  s += counted(100);
  EXPECT_EQ(s.total, 101);
  EXPECT_EQ(s.exposed_codec, 9 + 108);
  EXPECT_EQ(s.eval, 11 + 110);
  for (const SecondsField& f : seconds_fields)
    EXPECT_EQ(s.*f.value, counted(1).*f.value + counted(100).*f.value) << f.name;
}

TEST(Seconds, SplitIntoCommunicationAndComputation) {
  Seconds s;
  s.total = 20;
  s.data = 1;
  s.forward = 2;
  s.backward = 3;
  s.exposed_comm = 5;
  s.exposed_codec = 4;
  s.update = 1;
  s.eval = 6;
  s.encode = s.decode = s.transfer = 100;  // beside the others
  EXPECT_EQ(s.other(), 2);
  EXPECT_EQ(s.communication(), 1);
  EXPECT_EQ(s.computation(), 11);
}

TEST(Seconds, MeanMinAndMaxOverRanks) {
  run_thread_ranks(3, [](Transport& transport) {
    // Ranks 0, 1, 2 have 4, 1, 10 in `total`; in `eval`, the last field, the order is the other way round.
    Seconds mine;
    mine.total = std::array{4.0, 1.0, 10.0}[static_cast<std::size_t>(transport.rank())];
    mine.eval = -mine.total;
    const SecondsOfRanks all = over_ranks(transport, mine);
    EXPECT_EQ(all.mean.total, 5);
    EXPECT_EQ(all.min.total, 1);
    EXPECT_EQ(all.max.total, 10);
    EXPECT_EQ(all.min.eval, -10);
    EXPECT_EQ(all.max.eval, -1);
    EXPECT_EQ(all.max.forward, 0);
  });
}

TEST(Seconds, JsonGoesThereAndBack) {
  const SecondsOfRanks from{counted(1), counted(20), counted(300)};
  const nlohmann::ordered_json json = from;
  EXPECT_EQ(json.dump().substr(0, 45), R"({"mean":{"total":1.0,"data":2.0,"forward":3.0)");
  EXPECT_EQ(json["max"]["exposed_codec"], 308);
  const auto back = json.get<SecondsOfRanks>();
  for (const SecondsField& f : seconds_fields) {
    EXPECT_EQ(back.mean.*f.value, from.mean.*f.value) << f.name;
    EXPECT_EQ(back.min.*f.value, from.min.*f.value) << f.name;
    EXPECT_EQ(back.max.*f.value, from.max.*f.value) << f.name;
  }
}

TEST(Seconds, JsonWithoutAFieldIsRefused) {
  for (const SecondsField& f : seconds_fields) {
    nlohmann::ordered_json json = counted(1);
    json.erase(f.name);
    EXPECT_THROW(json.get<Seconds>(), nlohmann::ordered_json::exception) << f.name;
  }
}

}  // namespace
}  // namespace lpsgd
