// Files that take their place when they are whole, also if several jobs write one path at once.
#include "core/replacement_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <filesystem>

#include "core/error.h"
#include "core/file.h"
#include "tests/core/temporary_folder.h"

namespace lpsgd {
namespace {

namespace fs = std::filesystem;

void write_text(ReplacementFile& file, std::string_view text) {
  file.write(std::as_bytes(std::span(text)));
}

class Replacement : public TemporaryFolder {
 protected:
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& entry : fs::directory_iterator(folder_)) out.push_back(entry.path().filename().string());
    return out;
  }
};

TEST_F(Replacement, AppearsWhenItIsWhole) {
  write("a", "before");
  {
    ReplacementFile file(path("a"));
    write_text(file, "one, ");
    write_text(file, "two");
    EXPECT_EQ(read_file(path("a")), "before");
    file.publish();
    EXPECT_EQ(read_file(path("a")), "one, two");
  }
  EXPECT_THAT(names(), testing::ElementsAre("a"));
}

TEST_F(Replacement, LeavesNothingUnlessItIsPublished) {
  write("a", "before");
  { write_text(*std::make_unique<ReplacementFile>(path("a")), "more"); }
  EXPECT_THAT(names(), testing::ElementsAre("a"));
  EXPECT_EQ(read_file(path("a")), "before");
}

TEST_F(Replacement, OfTwoAtOnceEachIsWhole) {
  ReplacementFile first(path("a")), second(path("a"));
  write_text(first, "first");
  write_text(second, "the second");
  write_text(first, " file");
  first.publish();
  EXPECT_EQ(read_file(path("a")), "first file");
  write_text(second, " file");
  second.publish();
  EXPECT_EQ(read_file(path("a")), "the second file");
  EXPECT_THAT(names(), testing::ElementsAre("a"));
}

TEST_F(Replacement, RemovesWhatAKilledJobLeft) {
  write("a.new-elsewhere-12345678", "of another host");
  write("ab.new", "of a user");
  ReplacementFile live(path("a"));
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ReplacementFile file(path("a"));
    std::_Exit(0);  // as if it was killed
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(names().size(), 4u);
  ReplacementFile next(path("a"));
  EXPECT_EQ(names().size(), 4u);
  write_text(live, "alive");
  live.publish();
  EXPECT_EQ(read_file(path("a")), "alive");
  next.publish();
  EXPECT_THAT(names(), testing::UnorderedElementsAre("a", "a.new-elsewhere-12345678", "ab.new"));
}

TEST_F(Replacement, RefusesWhatIsNoPathOfAFile) {
  EXPECT_EQ(error_of([&] { ReplacementFile file(path("b/")); }),
            path("b/") + ": is a folder; expected the name of a file to write");
  EXPECT_EQ(error_of([&] { ReplacementFile file(folder_.string()); }),
            folder_.string() + ": is a folder; expected the name of a file to write");
  EXPECT_THAT(error_of([&] { ReplacementFile file(path("none/a")); }),
              testing::HasSubstr("cannot be written: No such file or directory"));
}

TEST_F(Replacement, CannotReplaceAFolder) {
  ReplacementFile file(path("a"));
  fs::create_directory(path("a"));
  EXPECT_EQ(error_of([&] { file.publish(); }), path("a") + ": cannot be written: Is a directory");
}

}  // namespace
}  // namespace lpsgd
