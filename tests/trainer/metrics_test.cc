#include "trainer/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "tests/comm/captured_log.h"
#include "tests/trainer/small_run.h"
#include "trainer/epoch_records.h"

namespace lpsgd {
namespace {

EpochRecord record() {
  EpochRecord r;
  r.epoch = 3;
  r.step = 12;
  r.lr = 0.5;
  r.train = {.loss = 30, .top1 = 5, .top5 = 9, .samples = 20};
  r.validation = {.loss = 8, .top1 = 1, .top5 = 3, .samples = 4};
  r.seconds.mean.total = 16;
  r.seconds.mean.forward = 4;
  r.seconds.mean.exposed_comm = 3;
  r.seconds.mean.exposed_codec = 2;
  r.seconds.mean.update = 1;
  r.seconds.mean.eval = 6;
  r.seconds.max = r.seconds.mean;
  r.bytes_sent = 100;
  r.bytes_fp32 = 400;
  r.bad_samples = 7;
  return r;
}

TEST(EpochRecord, Json) {
  EXPECT_EQ(
      record().json(),
      R"({"epoch":3,"step":12,"lr":0.5,"train_loss":1.5,"train_top1":25.0,"val_loss":2.0,"val_top1":25.0,)"
      R"("val_top5":75.0,"samples":20,"samples_per_s":2.5,)"
      R"("seconds":{"total":16.0,"data":0.0,"forward":4.0,"backward":0.0,"encode":0.0,"transfer":0.0,)"
      R"("decode":0.0,"exposed_comm":3.0,"update":1.0,"eval":6.0,"other":2.0},)"
      R"("seconds_min":{"total":0.0,"data":0.0,"forward":0.0,"backward":0.0,"encode":0.0,"transfer":0.0,)"
      R"("decode":0.0,"exposed_comm":0.0,"update":0.0,"eval":0.0},)"
      R"("seconds_max":{"total":16.0,"data":0.0,"forward":4.0,"backward":0.0,"encode":0.0,"transfer":0.0,)"
      R"("decode":0.0,"exposed_comm":3.0,"update":1.0,"eval":6.0},)"
      R"("communication_s":1.0,"computation_s":7.0,"bytes_sent":100,"bytes_fp32":400,"bad_samples":7,"replicas_equal":true})");
}

TEST(EpochRecord, SequencesCountFramesAndTheirSamples) {
  EpochRecord r = record();
  r.kind = DataKind::speech;
  r.sequences = {.sequences = 4, .room = 25};
  const auto speech = nlohmann::json::parse(r.json());
  EXPECT_EQ(speech["samples"], 4);
  EXPECT_EQ(speech["samples_per_s"], 0.5);
  EXPECT_EQ(speech["frames"], 20);
  EXPECT_DOUBLE_EQ(speech["padding"], 0.2);
  EXPECT_EQ(speech["train_loss"], 1.5) << "per frame";
  EXPECT_FALSE(speech.contains("val_perplexity"));
  EXPECT_EQ(text(r, 5).substr(0, 106),
            "epoch 3/5 | train loss 1.5000 frame accuracy 25.00% | val loss 2.0000 frame accuracy 25.00% "
            "top5 75.00% | ");

  r.kind = DataKind::text;
  const auto words = nlohmann::json::parse(r.json());
  EXPECT_DOUBLE_EQ(words["train_perplexity"], std::exp(1.5));
  EXPECT_DOUBLE_EQ(words["val_perplexity"], std::exp(2.0));
  EXPECT_EQ(text(r, 5).substr(0, 83),
            "epoch 3/5 | train loss 1.5000 perplexity 4.48 | val loss 2.0000 perplexity 7.39 | 0");
}

TEST(EpochRecord, JsonOfASimulatedRunComparesNoReplicas) {
  EpochRecord r = record();
  r.simulated = true;
  const auto json = nlohmann::json::parse(r.json());
  EXPECT_TRUE(json["replicas_equal"].is_null());
  EXPECT_EQ(json["simulated"], true);
}

TEST(EpochRecord, JsonOfLocalSteps) {
  EpochRecord r = record();
  EXPECT_FALSE(nlohmann::json::parse(r.json()).contains("synchronisations"));
  r.local_steps = true;
  r.synchronisations = 4;
  r.bytes_sent = 1000;
  r.distance = {.deviation = 9, .change = 4};
  r.bytes_average = 77;
  const auto json = nlohmann::json::parse(r.json());
  EXPECT_EQ(json["synchronisations"], 4);
  EXPECT_EQ(json["bytes_per_synchronisation"], 250);
  EXPECT_EQ(json["replica_distance"], 1.5);
  EXPECT_EQ(json["bytes_average"], 77);
  r.synchronisations = 0;
  r.distance = {};
  EXPECT_TRUE(nlohmann::json::parse(r.json())["replica_distance"].is_null());
  EXPECT_TRUE(nlohmann::json::parse(r.json())["bytes_per_synchronisation"].is_null());
}

TEST(EpochRecord, JsonOfCodecErrors) {
  EpochRecord r = record();
  r.coding = {{"fc.weight", 0.5, 2, 1024}, {"bad \xff", 0, 0, 0}};
  const auto json = nlohmann::json::parse(r.json());
  EXPECT_EQ(json["codec_error"]["fc.weight"],
            nlohmann::json({{"error", 0.5}, {"residual", 2}, {"bytes", 1024}}));
  EXPECT_TRUE(json["codec_error"].contains("bad \xef\xbf\xbd")) << "bytes that are not UTF-8 become U+FFFD";
}

TEST(EpochRecord, JsonWithoutSamplesHasNoMean) {
  EpochRecord r = record();
  r.validation = {};
  EXPECT_TRUE(nlohmann::json::parse(r.json())["val_loss"].is_null());
}

TEST(EpochRecord, Text) {
  EXPECT_EQ(text(record(), 160),
            "epoch 3/160 | train loss 1.5000 top1 25.00% | val loss 2.0000 top1 25.00% top5 75.00% | 2 "
            "samples/s | comm 1.0 s comp 7.0 s");
  EpochRecord differ = record();
  differ.replicas_equal = false;
  EXPECT_THAT(text(differ, 160), testing::EndsWith("7.0 s | REPLICAS DIFFER"));
  differ.simulated = true;
  EXPECT_THAT(text(differ, 160), testing::EndsWith("7.0 s"));
}

TEST(MetricsFile, AppendsLines) {
  const TestFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  MetricsFile file(path, 0);
  EXPECT_EQ(read_file(path), "");
  file.append(record());
  file.append(record());
  EXPECT_EQ(read_file(path), record().json() + "\n" + record().json() + "\n");
}

TEST(MetricsFile, KeepsTheFinishedEpochsOfAnOlderFile) {
  const TestFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  std::vector<std::string> lines;
  for (const std::int64_t epoch : {1, 2, 3}) {
    EpochRecord one = record();
    one.epoch = epoch;
    lines.push_back(one.json() + "\n");
  }
  std::ofstream(path) << lines[0] << lines[1] << lines[2] << "{\"epo";  // cut off by a crash
  CapturedLog log;
  const MetricsFile file(path, 2);
  EXPECT_EQ(read_file(path), lines[0] + lines[1]);
  EXPECT_EQ(log.text(), "");
  const MetricsFile longer(path, 3);
  EXPECT_THAT(log.text(), testing::HasSubstr("has the records of 2 of 3 finished epochs"));
}

TEST(MetricsFile, RefusesARecordOfWhichNoSummaryCanBeMade) {
  const TestFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  const auto good = nlohmann::json::parse(record().json());
  for (const char* key : {"step", "samples", "val_loss", "val_top1", "val_top5", "seconds", "bytes_sent",
                          "bytes_fp32", "communication_s", "computation_s"})
    for (const bool is_missing : {true, false}) {
      nlohmann::json bad = good;
      if (is_missing)
        bad.erase(key);
      else
        bad[key] = "1";
      const std::string text = bad.dump() + "\n";
      std::ofstream(path) << text;
      try {
        const MetricsFile file(path, 3);
        ADD_FAILURE() << key;
      } catch (const FileError& e) {
        EXPECT_THAT(e.what(), testing::StartsWith(path + ":1: not an epoch's record: '" + key)) << key;
      }
      EXPECT_EQ(read_file(path), text) << "the file must stay";
    }
}

TEST(MetricsFile, NamesTheLineThatIsNoRecord) {
  const TestFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  const std::string good = record().json() + "\n";
  const auto error_of = [&](const std::string& line) -> std::string {
    std::ofstream(path) << good << line << "\n" << good;
    try {
      const MetricsFile file(path, 2);
    } catch (const FileError& e) {
      EXPECT_EQ(read_file(path), good + line + "\n" + good) << "the file must stay";
      return e.what();
    }
    return "no error";
  };
  EXPECT_THAT(error_of("\x1b[2J"), testing::StartsWith(path + ":2: not JSON: "));
  for (const char* line : {"[1]", "{}", R"({"epoch":"2"})", R"({"epoch":1.5})"})
    EXPECT_THAT(error_of(line), testing::StartsWith(path + ":2: not an epoch's record")) << line;
  EXPECT_EQ(error_of(std::string(300'000, '[')), path + ":2: nested too deeply: more than 16 levels");
}

/// Lines of records that have so many more keys.
std::string lines_of_keys(int lines, int keys) {
  std::string line = R"({"epoch":1)";
  for (int k = 0; k < keys; ++k) line += fmt::format(R"(,"key{:05}":1)", k);
  line += "}\n";
  std::string out;
  for (int l = 0; l < lines; ++l) out += line;
  return out;
}

TEST(MetricsFile, TakesTimeForItsBytesHoweverManyKeysAnObjectHas) {
  const auto seconds = [](const std::string& text) {
    const std::clock_t begin = std::clock();
    EXPECT_FALSE(parse_epoch_lines(text, "metrics.jsonl").empty());
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  const double few = seconds(lines_of_keys(190, 100)), many = seconds(lines_of_keys(1, 19'000));
  EXPECT_LT(many, 8 * few) << few;  // 30 times with a search among all keys before each key
}

TEST(MetricsFile, NamesAFileThatCannotBeWritten) {
  const TestFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  MetricsFile file(path, 0);
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  try {
    file.append(record());
    FAIL() << "no error";
  } catch (const FileError& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr(path + ": cannot be written: Is a directory"));
  }
}

}  // namespace
}  // namespace lpsgd
