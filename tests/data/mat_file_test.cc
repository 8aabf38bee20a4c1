// A file as scipy writes it, with the fields of ImageNet's meta.mat:
//   a = numpy.empty((4, 1), dtype=[(name, object) for name in ("ILSVRC2012_ID", "WNID", "words", "gloss",
//                                  "num_children", "children", "wordnet_height", "num_train_images")])
//   a[0, 0] = (1.0, "n02119789", "kit fox", "a gloss", 0.0, numpy.empty((0, 0)), 0.0, 1300.0)
//   ... (2.0, "n02100735"), (3.0, "n01440764"), (400.0, "n00001740")
//   scipy.io.savemat(file, {"synsets": a, "other": numpy.arange(4)}, do_compression=True)
#include "data/mat_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "core/error.h"
#include "tests/core/temporary_folder.h"

namespace lpsgd {
namespace {

using testing::HasSubstr;

constexpr std::string_view scipy_file =
    "4d41544c414220352e30204d41542d66696c6520506c6174666f726d3a20706f7369782c2043726561746564206f6e3a204d"
    "6f6e204e6f762032332030333a33363a31302032303236000000000000000000000000000000000000000000000000000000"
    "0000000000000000000000000000000000000000000000000001494d0f00000055010000789ced53d14ac33014cd46d76d2f"
    "65fe413f21add56e4f2ba80f031151d0c752b6d806bb149a88f60ffc003fd04fd82798d86c66b1536984bdecc2259c53ceb9"
    "b9b9b70e00e07d0080cd4f7e802ea8a327b1c5b323b3cf9356842246f9770b1c49fe95e7ecf2f6eee6cc879e1fcfce85c1fd"
    "557d6ee2b928175425d2bca05b04795ac6f30ce78b12914f620bac3d08627186709a3129616582498c97498a28703839065f"
    "fdd85a3f1d25450c255fc76a2af491a2b71af443453f929840dff326e1782279fd1e4d3e7dcd47e047ccdc87e2a5b53e71eb"
    "67357b87fafef007fd3a547d53df6deab6d65fbf4586f52393f943181e9f287dfce6e3683e025f9034c73473f94fc650d97e"
    "8f0e7b60527f60b0075e10c0f034d8d147934f4ff311982132cffea83fccffbfe75f19cc9f87170670471f4d3eb6e6233022"
    "0cb36aeff3fff60e4dfaaea61f6de4aba9eab3cf7df800261e5ae80f00000035000000789ce36360608800623620e600623e"
    "06086085f2198198054a83c4f24b32528b80340f102b30200023946682d2cc501a009d1902ef";

std::vector<std::uint8_t> file_of(std::string_view hex) {
  std::vector<std::uint8_t> out;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    out.push_back(static_cast<std::uint8_t>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  return out;
}

/// The same file with its first element not compressed.
std::vector<std::uint8_t> inflated(std::vector<std::uint8_t> file) {
  std::uint32_t size = 0;
  std::memcpy(&size, file.data() + 132, 4);
  std::vector<std::uint8_t> element(1 << 16);
  uLongf length = element.size();
  EXPECT_EQ(::uncompress(element.data(), &length, file.data() + 136, size), Z_OK);
  file.resize(128);
  file.insert(file.end(), element.begin(), element.begin() + static_cast<std::ptrdiff_t>(length));
  return file;
}

std::string error(const std::vector<std::uint8_t>& file) {
  return error_of([&] { parse_meta_mat(file, "meta.mat"); });
}

TEST(MatFile, HasTheClassesInTheOrderOfTheFile) {
  for (const auto& file : {file_of(scipy_file), inflated(file_of(scipy_file))}) {
    const std::vector<Synset> synsets = parse_meta_mat(file, "meta.mat");
    ASSERT_EQ(synsets.size(), 4u);
    const std::vector<std::int64_t> ids{1, 2, 3, 400};
    const std::vector<std::string> wnids{"n02119789", "n02100735", "n01440764", "n00001740"};
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(synsets[i].id, ids[i]);
      EXPECT_EQ(synsets[i].wnid, wnids[i]);
    }
  }
}

TEST(MatFile, RefusesWhatItCannotRead) {
  const std::vector<std::uint8_t> good = file_of(scipy_file), plain = inflated(good);
  EXPECT_EQ(error({}), "meta.mat: no MATLAB 5 file, expected that of ImageNet's development kit");
  std::vector<std::uint8_t> big_endian = good;
  std::swap(big_endian[126], big_endian[127]);
  EXPECT_THAT(error(big_endian), HasSubstr("no MATLAB 5 file"));
  EXPECT_EQ(error({good.begin(), good.begin() + 300}), "meta.mat: malformed MATLAB file: truncated");
  EXPECT_EQ(error({good.begin(), good.begin() + 128}),
            "meta.mat: malformed MATLAB file: there is no struct array `synsets`");
  std::vector<std::uint8_t> damaged = good;
  damaged[200] ^= 0x55;
  EXPECT_EQ(error(damaged), "meta.mat: malformed MATLAB file: a compressed element is damaged");
  const auto renamed = [&](std::string_view from, std::string_view to) {
    std::vector<std::uint8_t> out = plain;
    const auto at = std::search(out.begin(), out.end(), from.begin(), from.end());
    std::copy(to.begin(), to.end(), at);
    return out;
  };
  EXPECT_THAT(error(renamed("synsets", "otherxx")), HasSubstr("there is no struct array"));
  EXPECT_THAT(error(renamed("WNID", "wnid")), HasSubstr("has no fields ILSVRC2012_ID and WNID"));
}

TEST(MatFile, NoCutOrChangedByteIsReadOutside) {
  const std::vector<std::uint8_t> plain = inflated(file_of(scipy_file));
  for (std::size_t end = 0; end < plain.size(); ++end) {
    const std::vector<std::uint8_t> cut(plain.begin(), plain.begin() + static_cast<std::ptrdiff_t>(end));
    EXPECT_THROW(parse_meta_mat(cut, "meta.mat"), FileError) << end;
  }
  for (std::size_t i = 128; i < plain.size(); ++i) {
    std::vector<std::uint8_t> changed = plain;
    changed[i] ^= 0xff;
    try {
      parse_meta_mat(changed, "meta.mat");
    } catch (const FileError&) {
    }
  }
}

}  // namespace
}  // namespace lpsgd
