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

#include "core/error.h"

namespace lpsgd {

/// Removed at the end of the test.
class TemporaryFolder : public testing::Test {
 protected:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "lpsgd_test_XXXXXX").string();
    if (!::mkdtemp(pattern.data())) throw FileError(pattern + ": cannot be made");
    folder_ = pattern;
  }
  ~TemporaryFolder() override { std::filesystem::remove_all(folder_); }

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

  std::filesystem::path folder_;
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
