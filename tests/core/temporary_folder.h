// A folder of a test's own, and the texts of errors.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

#include "core/error.h"

namespace lpsgd {

/// An empty folder with a name of its own, removed with the object.
class TestFolder {
 public:
  TestFolder() : path_((std::filesystem::temp_directory_path() / "lpsgd_test_XXXXXX").string()) {
    if (!::mkdtemp(path_.data())) throw FileError(path_ + ": cannot be made");
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// A test with a folder.
class TemporaryFolder : public testing::Test {
 private:
  const TestFolder made_;

 protected:
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  /// Writes a file, and the folders that it lies in. Returns its path.
  std::string write(const std::string& name, std::string_view content) const {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return path(name);
  }

  /// Calls `error` in a process that may not enter the folder; it must return `expected`.
  template <class F>
  void expect_without_permission(F error, const std::string& expected) const {
    const auto child = [&] {
      const bool is_root = ::geteuid() == 0;  // of whom no permission is asked
      if (is_root && ::setuid(65534) != 0) std::_Exit(2);
      std::fputs(error().c_str(), stderr);
      std::_Exit(0);
    };
    std::filesystem::permissions(folder_, std::filesystem::perms::none);
    EXPECT_EXIT(child(), testing::ExitedWithCode(0), testing::Eq(expected));
    std::filesystem::permissions(folder_, std::filesystem::perms::owner_all);
  }

  const std::filesystem::path folder_ = made_.path();
};

/// The message of the FileError (or another type) that `body` throws.
template <class E = FileError, class F>
std::string error_of(F body) {
  try {
    body();
  } catch (const E& e) {
    return e.what();
  }
  return "no error of this type";
}

}  // namespace lpsgd
