// Files: bounds on what is read, and no link followed when a file is replaced.
#include "core/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "core/checksum.h"
#include "core/error.h"
#include "tests/core/temporary_folder.h"

namespace lpsgd {
namespace {

namespace fs = std::filesystem;

class File : public TemporaryFolder {
 protected:
  static std::string error_of(const std::string& path, std::uint64_t limit = no_limit) {
    try {
      read_file(path, limit);
    } catch (const FileError& e) {
      return e.what();
    }
    return "no error";
  }
};

TEST_F(File, ReadsUpToTheLimit) {
  write_file(path("a"), std::string(100'000, 'x'));
  EXPECT_EQ(read_file(path("a"), 100'000), std::string(100'000, 'x'));
  EXPECT_EQ(error_of(path("a"), 99'999), path("a") + ": too large: 100000 bytes, expected 99999 or fewer");
}

TEST_F(File, AFileOfTheSystemHasALimit) {
  EXPECT_NE(read_file("/proc/self/status", 1 << 20), "") << "its size is 0";
  EXPECT_THAT(error_of("/proc/self/status", 10), testing::HasSubstr("too large: expected 10 bytes or fewer"));
}

TEST_F(File, OnlyRegularFilesAreRead) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(error_of(path("pipe")), path("pipe") + ": cannot be read: not a regular file");
  EXPECT_EQ(error_of("/dev/zero"), "/dev/zero: cannot be read: not a regular file");
  EXPECT_EQ(error_of(folder_.string()), folder_.string() + ": cannot be read: Is a directory");
  EXPECT_THAT(error_of(path("none")), testing::HasSubstr("cannot be read: No such file"));
  EXPECT_THROW(file_checksum(path("pipe")), FileError);
}

TEST_F(File, ReplacingFollowsNoLink) {
  write_file(path("victim"), "mine");
  fs::create_symlink(path("victim"), path("a.new"));
  replace_file(path("a"), "new");
  EXPECT_EQ(read_file(path("victim")), "mine");
  EXPECT_EQ(read_file(path("a")), "new");
  EXPECT_FALSE(fs::is_symlink(path("a")));
  EXPECT_FALSE(fs::exists(path("a.new")));
}

TEST_F(File, ReplacingRemovesWhatACrashLeft) {
  write_file(path("a.new"), "a longer text that a crash left");
  replace_file(path("a"), "short");
  EXPECT_EQ(read_file(path("a")), "short");
}

TEST_F(File, FoldersThatCannotBeSyncedAreNoError) {
  EXPECT_NO_THROW(sync_folder(folder_.string()));
  EXPECT_NO_THROW(sync_folder("/proc/self")) << "there fsync is EINVAL";
  EXPECT_THROW(sync_folder(path("none")), FileError);
}

TEST_F(File, ChecksumsAreThoseOfTheBytes) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{7}, (std::size_t{1} << 20) + 1}) {
    const std::string text(size, 'y');
    write_file(path("a"), text);
    EXPECT_EQ(file_checksum(path("a")), checksum(std::as_bytes(std::span(text))));
  }
}

}  // namespace
}  // namespace lpsgd
