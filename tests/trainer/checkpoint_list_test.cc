#include "trainer/checkpoint_list.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "core/checksum.h"
#include "core/error.h"
#include "tests/core/temporary_folder.h"

namespace lpsgd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

/// A whole checkpoint of one rank, put together beside its place.
void make_checkpoint(const fs::path& checkpoints, std::int64_t step) {
  const fs::path target = checkpoints / step_checkpoint_name(step), building = folder_while_written(target);
  fs::create_directories(building);
  CheckpointManifest m;
  m.position = {.step = step, .epoch = 0, .batch = 0};
  m.batch_size = 1;
  for (const std::string& name : {std::string(model_file), state_file(0)}) {
    std::ofstream(building / name) << step;
    m.files.emplace_back(name, file_checksum((building / name).string()));
  }
  write_manifest(building.string(), m);
  fs::rename(building, target);
}

std::vector<std::string> names(const fs::path& checkpoints) {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(checkpoints)) out.push_back(entry.path().filename());
  std::sort(out.begin(), out.end());
  return out;
}

TEST(CheckpointList, DamagedOnesDoNotCountAmongThoseKept) {
  for (const bool is_known : {false, true}) {
    const TestFolder folder;
    const fs::path checkpoints = checkpoints_folder(folder.path());
    for (const std::int64_t step : {10, 20, 30}) make_checkpoint(checkpoints, step);
    std::ofstream(checkpoints / "step-000020" / model_file) << "damaged";
    remove_old_checkpoints(folder.path(), "step-000030", 2,
                           is_known ? std::vector<std::string>{"step-000020"} : std::vector<std::string>{});
    if (is_known)
      EXPECT_THAT(names(checkpoints), ElementsAre("step-000010", "step-000020", "step-000030"));
    else
      EXPECT_THAT(names(checkpoints), ElementsAre("step-000020", "step-000030"));
  }
}

TEST(CheckpointList, ALinkThatLeadsNowhereIsNoEmptyRun) {
  const TestFolder folder;
  const std::string link = checkpoints_folder(folder.path());
  EXPECT_TRUE(list_checkpoints(folder.path()).empty());
  fs::create_symlink("/nowhere", link);
  try {
    find_resume_point(folder.path());
    ADD_FAILURE() << "no error";
  } catch (const FileError& e) {
    EXPECT_THAT(e.what(), HasSubstr(link + ": cannot be read: No such file or directory"));
  }
}

/// A run that trains on writes checkpoints and removes the older ones while they are looked for.
TEST(CheckpointList, FindsOneWhileARunReplacesThem) {
  const TestFolder folder;
  const fs::path checkpoints = checkpoints_folder(folder.path());
  make_checkpoint(checkpoints, 0);
  const std::jthread run([&](const std::stop_token& stop) {
    for (std::int64_t step = 1; !stop.stop_requested(); ++step) {
      make_checkpoint(checkpoints, step);
      remove_old_checkpoints(folder.path(), step_checkpoint_name(step), 1);
    }
  });
  for (int i = 0; i < 300; ++i) {
    std::vector<PassedOver> passed_over;
    ASSERT_TRUE(find_resume_point(folder.path(), &passed_over)) << i;
    for (const PassedOver& one : passed_over) ADD_FAILURE() << text(one);
  }
}

}  // namespace
}  // namespace lpsgd
