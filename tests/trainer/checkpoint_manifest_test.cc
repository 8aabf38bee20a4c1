#include "trainer/checkpoint_manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/checksum.h"
#include "core/error.h"
#include "core/file.h"
#include "tests/trainer/small_run.h"

namespace lpsgd {
namespace {

using testing::HasSubstr;

/// Written by lpsgd 0.1.0: the format must stay readable.
const char* const written_before =
    R"({"format":1,"step":2,"epoch":0,"ranks":2,"seeds":{"run":3},"schedule":{"lr":0.05},)"
    R"("data":{"epoch":0,"batch":2,"batches":4,"batch_size":24},)"
    R"("epoch_so_far":{"train":[)"
    R"({"loss":54.58436985261769,"top1":6,"top5":15,"samples":24},)"
    R"({"loss":56.57044582751563,"top1":1,"top5":13,"samples":24}],)"
    R"("seconds":{)"
    R"("mean":{"total":0.09780611850010246,"data":0.006575010000005932,"forward":0.002152865500193002,)"
    R"("backward":0.08839209849998042,"encode":2.4983272990004477e-05,"transfer":0.0004378095002266491,)"
    R"("decode":2.5957226714661376e-05,"exposed_comm":0.0005093775000659662,)"
    R"("exposed_codec":5.0940499704665854e-05,"update":3.693000053317519e-06,"eval":0.0},)"
    R"("min":{"total":0.09773308100011491,"data":4.3633999666781165e-05,"forward":0.0003675390003081702,)"
    R"("backward":0.08360088700010238,"encode":1.9827019138609803e-05,"transfer":0.00032651200035616057,)"
    R"("decode":1.374798049524655e-05,"exposed_comm":0.00040664200014361995,)"
    R"("exposed_codec":3.357499963385635e-05,"update":1.4350002857099753e-06,"eval":0.0},)"
    R"("max":{"total":0.09787915600009,"data":0.013106386000345083,"forward":0.003938192000077834,)"
    R"("backward":0.09318330999985847,"encode":3.0139526841399154e-05,"transfer":0.0005491070000971376,)"
    R"("decode":3.81664729340762e-05,"exposed_comm":0.0006121129999883124,)"
    R"("exposed_codec":6.830599977547536e-05,"update":5.9509998209250625e-06,"eval":0.0}},)"
    R"("bytes_sent":1808,"bytes_fp32":25376},)"
    R"("codecs":{"conv1.weight":"{kind: onebit, bucket: 64, error_feedback: true}",)"
    R"("bn1.weight":"{kind: onebit, bucket: 64, error_feedback: true}",)"
    R"("bn1.bias":"{kind: onebit, bucket: 64, error_feedback: true}",)"
    R"("conv2.weight":"{kind: onebit, bucket: 64, error_feedback: true}",)"
    R"("bn2.weight":"{kind: onebit, bucket: 64, error_feedback: true}",)"
    R"("bn2.bias":"{kind: onebit, bucket: 64, error_feedback: true}",)"
    R"("fc.weight":"{kind: onebit, bucket: 64, error_feedback: true}",)"
    R"("fc.bias":"{kind: onebit, bucket: 64, error_feedback: true}"},)"
    R"("files":{"model.safetensors":"caeb52bbf6922ec485f800c36b518ed5",)"
    R"("state-rank0000.safetensors":"9ef9479696a11361c0b0c0b415a8a362",)"
    R"("state-rank0001.safetensors":"97a11d3b55b19472eb93cf18c83c340d"},)"
    R"("checksum":"b0012e2b8d44f71fcaf339c21552a19d"})";

std::string write_text(const TestFolder& folder, const std::string& text) {
  std::ofstream(folder.path() + "/manifest.json") << text;
  return folder.path();
}

TEST(CheckpointManifest, ReadsAnOlderVersions) {
  const TestFolder folder;
  const CheckpointManifest m = read_manifest(write_text(folder, written_before));
  EXPECT_EQ(m.position.step, 2);
  EXPECT_EQ(m.position.epoch, 0);
  EXPECT_EQ(m.position.batch, 2);
  EXPECT_EQ(m.ranks, 2);
  EXPECT_EQ(m.seed, 3u);
  EXPECT_EQ(m.lr, 0.05);
  EXPECT_EQ(m.batches, 4);
  EXPECT_EQ(m.batch_size, 24);
  ASSERT_EQ(m.so_far.train.size(), 2u);
  EXPECT_EQ(m.so_far.train[1].loss, 56.57044582751563);
  EXPECT_EQ(m.so_far.train[1].top5, 13);
  EXPECT_EQ(m.so_far.seconds.mean.total, 0.09780611850010246);
  EXPECT_EQ(m.so_far.seconds.min.exposed_codec, 3.357499963385635e-05);
  EXPECT_EQ(m.so_far.seconds.max.update, 5.9509998209250625e-06);
  EXPECT_EQ(m.so_far.bytes_sent, 1808u);
  EXPECT_EQ(m.so_far.bytes_fp32, 25376u);
  ASSERT_EQ(m.codecs.size(), 8u);
  EXPECT_EQ(m.codecs[6].first, "fc.weight");
  EXPECT_EQ(m.codecs[6].second, "{kind: onebit, bucket: 64, error_feedback: true}");
  ASSERT_EQ(m.files.size(), 3u);
  EXPECT_EQ(m.files[2].first, "state-rank0001.safetensors");
}

TEST(CheckpointManifest, WritesWhatItReads) {
  const TestFolder folder;
  const CheckpointManifest m = read_manifest(write_text(folder, written_before));
  write_manifest(folder.path(), m);
  using nlohmann::ordered_json;
  EXPECT_EQ(ordered_json::parse(read_file(folder.path() + "/manifest.json")).dump(), written_before);
}

TEST(CheckpointManifest, KeepsTheOrderOfSamples) {
  const TestFolder folder;
  CheckpointManifest m;
  m.batch_size = 1;
  m.order = {{"data.shuffle", "true"}, {"data.text.eos", "<\"e\">"}};
  write_manifest(folder.path(), m);
  EXPECT_EQ(read_manifest(folder.path()).order, m.order);
}

TEST(CheckpointManifest, KeepsThatItIsHalfway) {
  const TestFolder folder;
  CheckpointManifest m;
  m.batch_size = 1;
  for (const bool halfway : {true, false}) {
    m.halfway = halfway;
    write_manifest(folder.path(), m);
    EXPECT_EQ(read_manifest(folder.path()).halfway, halfway);
  }
}

TEST(CheckpointManifest, KeepsWhereLocalStepsAre) {
  const TestFolder folder;
  CheckpointManifest m;
  m.batch_size = 1;
  write_manifest(folder.path(), m);
  EXPECT_EQ(read_manifest(folder.path()).sync, SyncPosition{});
  m.sync = {.started = true, .steps = 3, .rounds = 2, .ranks_per_block = 4, .pending = {1, 3, 70}};
  m.codecs = {{"a", "none"}, {"b", "none"}, {"c", "none"}};
  m.so_far.exchanges = 5;
  m.so_far.distance = {.deviation = 0.5, .change = 0.25};
  m.so_far.bytes_average = 99;
  write_manifest(folder.path(), m);
  const CheckpointManifest back = read_manifest(folder.path());
  EXPECT_EQ(back.sync, m.sync);
  EXPECT_EQ(back.so_far.exchanges, 5);
  EXPECT_EQ(back.so_far.distance.deviation, 0.5);
  EXPECT_EQ(back.so_far.distance.change, 0.25);
  EXPECT_EQ(back.so_far.bytes_average, 99u);
}

TEST(CheckpointManifest, RefusesPendingChangesOfNoTensor) {
  for (const SyncPosition::Pending& pending : {SyncPosition::Pending{2, 2, 9}, {0, 4, 9}}) {
    const TestFolder folder;
    CheckpointManifest m;
    m.batch_size = 1;
    m.codecs = {{"a", "none"}, {"b", "none"}, {"c", "none"}};
    m.sync = {.started = true, .pending = pending};
    write_manifest(folder.path(), m);
    EXPECT_THROW(read_manifest(folder.path()), FileError);
  }
}

/// While H is 1, gradients are exchanged: nothing is averaged, and no distance measured.
TEST(CheckpointManifest, KeepsTheNumberOfSynchronisations) {
  const TestFolder folder;
  CheckpointManifest m;
  m.batch_size = 1;
  m.so_far.exchanges = 7;
  write_manifest(folder.path(), m);
  EXPECT_EQ(read_manifest(folder.path()).so_far.exchanges, 7);
  m.so_far.distance = {0.25, 0.5};
  m.so_far.bytes_average = 12;
  write_manifest(folder.path(), m);
  const EpochSoFar back = read_manifest(folder.path()).so_far;
  EXPECT_EQ(back.distance.deviation, 0.25);
  EXPECT_EQ(back.distance.change, 0.5);
  EXPECT_EQ(back.bytes_average, 12u);
}

TEST(CheckpointManifest, ALossThatIsNotFiniteReadsAs0) {
  const TestFolder folder;
  CheckpointManifest m;
  m.batch_size = 1;
  m.so_far.train = {{.loss = std::numeric_limits<double>::infinity(), .top1 = 2, .top5 = 3, .samples = 4}};
  write_manifest(folder.path(), m);
  EXPECT_THAT(read_file(folder.path() + "/manifest.json"), HasSubstr("\"loss\": null"));
  const BatchMetrics back = read_manifest(folder.path()).so_far.train.at(0);
  EXPECT_EQ(back.loss, 0);
  EXPECT_EQ(back.samples, 4);
}

void expect_refused(const std::string& text, const std::string& message) {
  const TestFolder folder;
  try {
    read_manifest(write_text(folder, text));
    ADD_FAILURE() << "accepted: " << text;
  } catch (const FileError& e) {
    EXPECT_THAT(e.what(), HasSubstr(folder.path() + "/manifest.json: " + message));
  }
}

TEST(CheckpointManifest, RefusesADamagedOne) {
  const std::string text = written_before;
  expect_refused(text.substr(0, 300), "is not a checkpoint's manifest");
  expect_refused("[1]", "is not a checkpoint's manifest");
  expect_refused(std::string(300'000, '['),
                 "is not a checkpoint's manifest: nested too deeply: more than 16 levels");
  expect_refused("{\"format\":2}", "is not a manifest of format 1");
  std::string changed = text;
  changed.replace(changed.find("\"step\":2"), 8, "\"step\":3");
  expect_refused(changed, "is damaged: its checksum is not its own");
}

TEST(CheckpointManifest, RefusesImpossibleNumbers) {
  // With a checksum of its own: write_manifest adds it.
  const auto refused = [](CheckpointManifest m, const std::string& message) {
    const TestFolder folder;
    write_manifest(folder.path(), m);
    try {
      read_manifest(folder.path());
      ADD_FAILURE() << "accepted: " << message;
    } catch (const FileError& e) {
      EXPECT_THAT(e.what(), HasSubstr(message));
    }
  };
  CheckpointManifest m;
  m.position.step = -1;
  refused(m, "-1 is an impossible number");
  m = {};
  m.position.batch = std::int64_t{1} << 49;
  refused(m, "562949953421312 is an impossible number");
  m = {};
  m.ranks = 0;
  refused(m, "names no ranks");
  m.ranks = 3;
  m.batch_size = 2;
  refused(m, "a batch of 2 samples for 3 ranks");
  m.batch_size = 3;
  m.batches = 4;
  m.position.batch = 5;
  refused(m, "batch 5 of an epoch of 4");
}

TEST(CheckpointManifest, VerifiesFiles) {
  const TestFolder folder;
  std::ofstream(folder.path() + "/model.safetensors") << "weights";
  CheckpointManifest m;
  m.files = {{"model.safetensors", file_checksum(folder.path() + "/model.safetensors")}};
  verify(m, folder.path(), "model.safetensors");
  const auto refused = [&](const std::string& name, const std::string& message) {
    try {
      verify(m, folder.path(), name);
      ADD_FAILURE() << "accepted: " << name;
    } catch (const FileError& e) {
      EXPECT_EQ(std::string(e.what()), folder.path() + message);
    }
  };
  refused("state-rank0000.safetensors", "/manifest.json: names no file state-rank0000.safetensors");
  std::ofstream(folder.path() + "/model.safetensors") << "weightz";
  refused("model.safetensors", "/model.safetensors: is damaged: its checksum is not the manifest's");
}

}  // namespace
}  // namespace lpsgd
