// Archives that GNU tar writes, in each of its formats; and damaged ones.
#include "data/tar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "tests/core/temporary_folder.h"

namespace lpsgd {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::map<std::string, std::string> contents(const std::string& path) {
  const InputFile file(path);
  std::map<std::string, std::string> out;
  for (const TarMember& member : read_tar_index(file)) {
    std::vector<std::uint8_t> bytes(member.size);
    file.read(member.offset, bytes);
    out.emplace(member.name, std::string(bytes.begin(), bytes.end()));
  }
  return out;
}

class Tar : public TemporaryFolder {
 protected:
  /// An archive of the folder `in`, written by GNU tar.
  std::string archive(const std::string& options) const {
    const std::string out = path("a.tar");
    const std::string command = "cd " + path("in") + " && tar " + options + " -cf " + out + " *";
    EXPECT_EQ(std::system(command.c_str()), 0);
    return out;
  }
  std::string error(const std::string& file) const {
    return error_of([&] { read_tar_index(InputFile(file)); });
  }
  static std::string read(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

TEST_F(Tar, ReadsEveryFormat) {
  const std::string deep(90, 'd'), long_name(120, 'n');
  const std::map<std::string, std::string> short_ones{{"a", "A"},
                                                      {"b.bin", std::string(512, 'b')},
                                                      {"folder/c", std::string(1000, 'c')},
                                                      {"folder/empty", ""}};
  std::map<std::string, std::string> files = short_ones;
  for (const auto& [name, content] : files) write("in/" + name, content);
  std::filesystem::create_symlink("a", path("in/link"));
  std::filesystem::create_hard_link(path("in/folder/c"), path("in/z"));  // a member without data
  EXPECT_EQ(contents(archive("--format=v7")), files);
  // In ustar a name has 100 characters, and 155 before it.
  files.emplace(deep + "/" + deep + "x", "prefix");
  write("in/" + files.rbegin()->first, "x");
  for (const auto& [name, content] : files) write("in/" + name, content);
  EXPECT_EQ(contents(archive("--format=ustar")), files);
  files.emplace(deep + "/" + deep + "/" + deep + "/" + long_name, "long");
  for (const auto& [name, content] : files) write("in/" + name, content);
  EXPECT_EQ(contents(archive("--format=gnu")), files);
  EXPECT_EQ(contents(archive("--format=posix")), files);
  EXPECT_EQ(contents(archive("--format=gnu --blocking-factor=1")), files);
}

TEST_F(Tar, ReadsAnArchiveInsideAnother) {
  write("in/x.txt", "inner");
  const std::string inner = read(archive("--format=gnu"));
  std::filesystem::remove(path("in/x.txt"));
  write("in/first", std::string(700, '1'));
  write("in/inner.tar", inner);
  const InputFile file(archive("--format=gnu"));
  const std::vector<TarMember> outer = read_tar_index(file);
  ASSERT_EQ(outer.size(), 2u);
  const auto members = read_tar_index(file, outer[1].offset, outer[1].size, "inner.tar");
  ASSERT_EQ(members.size(), 1u);
  EXPECT_EQ(members[0].name, "x.txt");
  std::vector<std::uint8_t> bytes(members[0].size);
  file.read(members[0].offset, bytes);
  EXPECT_EQ(std::string(bytes.begin(), bytes.end()), "inner");
}

/// Makes the sum of a header right again.
void fix_sum(std::string& header) {
  header.replace(148, 8, 8, ' ');
  int sum = 0;
  for (std::size_t i = 0; i < 512; ++i) sum += static_cast<unsigned char>(header[i]);
  header.replace(148, 7, fmt::format("{:06o}", sum) + '\0');
}

TEST_F(Tar, ReadsSizesInBase256) {
  write("in/a", std::string(700, 'a'));
  const std::string text = read(archive("--format=gnu"));
  std::string header = text.substr(0, 512);
  header.replace(124, 12, std::string("\x80\0\0\0\0\0\0\0\0\0\x02\xbc", 12));
  fix_sum(header);
  EXPECT_EQ(contents(write("b.tar", header + text.substr(512))).at("a").size(), 700u);
}

TEST_F(Tar, ReadsSizesOfPax) {
  write("in/a", std::string(700, 'a'));
  const std::string text = read(archive("--format=ustar"));
  std::string header = text.substr(0, 512), extended = header;
  header.replace(124, 11, "00000000000");  // as of a file whose size has too many digits
  fix_sum(header);
  std::string records = "12 size=700\n";
  extended.replace(124, 11, "00000000014");
  extended[156] = 'x';
  fix_sum(extended);
  records.resize(512);
  EXPECT_EQ(contents(write("b.tar", extended + records + header + text.substr(512))).at("a"),
            std::string(700, 'a'));
  for (const char* wrong :
       {"13 size=700\n", "99 size=700\n", "x2 size=700\n", "12-size=700\n", "12 size 700\n"}) {
    records.replace(0, 12, wrong, 12);
    EXPECT_THAT(error(write("b.tar", extended + records + header + text.substr(512))),
                HasSubstr("malformed tar archive: a pax record in the header at byte 0"));
  }
  for (const char* wrong : {"12 size=70x\n", "12 size=-70\n", "12 size=abc\n"}) {
    records.replace(0, 12, wrong, 12);
    EXPECT_EQ(error(write("b.tar", extended + records + header + text.substr(512))),
              fmt::format("{}: malformed tar archive: size '{}' in the header at byte 0", path("b.tar"),
                          std::string(wrong).substr(8, 3)));
  }
}

TEST_F(Tar, RefusesImpossibleHeaders) {
  write("in/a", std::string(700, 'a'));
  const std::string text = read(archive("--format=ustar"));
  std::string header = text.substr(0, 512);
  for (const std::string& size : {std::string("0000000x000"), "\xff" + std::string(11, '\xff')}) {
    header.replace(124, size.size(), size);
    fix_sum(header);
    EXPECT_EQ(error(write("b.tar", header + text.substr(512))),
              path("b.tar") + ": malformed tar archive: no size in the header at byte 0");
  }
  for (const char type : {'x', 'L'}) {
    header.replace(124, 12, std::string("00010000000\0", 12));  // 2 MiB
    header[156] = type;
    fix_sum(header);
    EXPECT_EQ(error(write("b.tar", header + std::string(3 << 20, '\0'))),
              path("b.tar") + ": malformed tar archive: an extended header of 2097152 bytes at byte 0");
  }
}

TEST_F(Tar, RefusesWhatIsDamaged) {
  write("in/a", std::string(700, 'a'));
  write("in/b", "b");
  const std::string text = read(archive("--format=gnu --blocking-factor=1"));
  ASSERT_EQ(text.size(), 512u * 7);  // header, two blocks; header, block; two of zeros
  EXPECT_EQ(error(write("empty.tar", "")), path("empty.tar") + ": empty, expected a tar archive");
  EXPECT_EQ(error(write("x.tar", "no archive")),
            path("x.tar") + ": no tar archive, or truncated: it ends at byte 10 without an end mark");
  EXPECT_EQ(error(write("y.tar", std::string(2000, 'y'))),
            path("y.tar") + ": no tar archive: byte 0 begins no valid header");
  EXPECT_EQ(error(write("t.tar", text.substr(0, 1000))),
            path("t.tar") + ": truncated: a member of 700 bytes begins at byte 512, but 488 are left");
  for (const std::size_t end : {512u * 3, 512u * 5})
    EXPECT_THAT(error(write("u.tar", text.substr(0, end))),
                HasSubstr(fmt::format("truncated: it ends at byte {} without an end mark", end)));
  EXPECT_EQ(contents(write("v.tar", text.substr(0, 512 * 6))).size(), 2u);  // one block of zeros is enough
  std::string damaged = text;
  damaged[512 * 3] ^= 1;
  EXPECT_EQ(error(write("d.tar", damaged)),
            path("d.tar") + ": malformed tar archive: byte 1536 begins no valid header");
  EXPECT_THAT(error(path("")), HasSubstr("cannot be read: Is a directory"));
  EXPECT_THAT(error(path("missing.tar")), StartsWith(path("missing.tar") + ": cannot be read: No such file"));
  std::filesystem::create_symlink("nowhere", path("dangling.tar"));
  EXPECT_THAT(error(path("dangling.tar")), HasSubstr("dangling.tar: cannot be read: No such file"));
}

TEST_F(Tar, RefusesSparseFiles) {
  write("in/a", "");
  std::filesystem::resize_file(path("in/a"), 1 << 20);
  for (const char* format :
       {"gnu", "posix --sparse-version=0.0", "posix --sparse-version=0.1", "posix --sparse-version=1.0"})
    EXPECT_THAT(
        error(archive(fmt::format("--format={} --sparse", format))),
        testing::EndsWith("a.tar: the member at byte 0 is a sparse file, which cannot be read in place"))
        << format;
}

}  // namespace
}  // namespace lpsgd
