#include "data/speech/alignment.h"

#include <gmock/gmock.h>

#include "core/error.h"
#include "data/speech/audio.h"

namespace lpsgd {
namespace {

template <class Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const FileError& e) {
    return e.what();
  }
  return "no error";
}

const StateList states("a_2\na_3\n\nsil\r\n", "states");

std::unordered_map<std::string, Alignment> read(const std::string& text) {
  return read_alignments(text, "f.mlf", states);
}

TEST(Alignment, ReadsSegmentsInFrames) {
  const auto all = read(
      "#!MLF!#\n"
      "\"An4/71/one-b.lab\"\n0 100000 sil -0.7 sil 454 </s>\n100000 500001 a_3\n500001 600000 a_2 1\n.\n"
      "\"*/two.rec\"\r\n0 200000 a_2\r\n.\r\n");
  ASSERT_EQ(all.size(), 2u);
  const Alignment& one = all.at("one-b");
  ASSERT_EQ(one.segments.size(), 3u);
  EXPECT_EQ(one.line, 2u);
  EXPECT_EQ(one.frames(), 6);
  EXPECT_EQ(one.segments[0].end, 1);
  EXPECT_EQ(one.segments[0].state, 2);
  EXPECT_EQ(one.segments[1].end, 5);
  EXPECT_EQ(one.segments[1].state, 1);
  EXPECT_EQ(one.segments[2].state, 0);
  EXPECT_EQ(all.at("two").frames(), 2);
}

TEST(Alignment, RefusesWhatIsMalformed) {
  const auto error = [](const std::string& text) { return error_of([&] { read(text); }); };
  const std::string head = "#!MLF!#\n\"x/u.lab\"\n";
  EXPECT_EQ(error(""), "f.mlf:0: no master label file: the first line is not #!MLF!#");
  EXPECT_EQ(error("0 1 a\n"), "f.mlf:1: no master label file: the first line is not #!MLF!#");
  EXPECT_EQ(error("#!MLF!#\nx/u.lab\n"), "f.mlf:2: expected the quoted name of a label file");
  EXPECT_EQ(error(head + "0 100000 sil\n"),
            "f.mlf:3: truncated: the alignment of 'u' does not end with a line of one dot");
  const std::string fields = "f.mlf:3: expected a begin, an end (in units of 100 ns) and a state";
  for (const char* line :
       {"", "0", "0 100000", "0 1e5 sil", "-100000 0 sil", "0 99999999999999999999 sil", "\"y.lab\""})
    EXPECT_EQ(error(head + line + "\n.\n"), fields) << line;
  EXPECT_EQ(error(head + "100000 200000 sil\n.\n"),
            "f.mlf:3: the segment begins at frame 1, the one before ended at 0");
  EXPECT_EQ(error(head + "0 200000 sil\n300000 400000 sil\n.\n"),
            "f.mlf:4: the segment begins at frame 3, the one before ended at 2");
  EXPECT_EQ(error(head + "0 0 sil\n.\n"), "f.mlf:3: the segment from frame 0 to 0 holds no frame");
  EXPECT_EQ(error(head + "0 100000 zz\n.\n"), "f.mlf:3: state 'zz' is not in the list of states");
  EXPECT_EQ(error(head + "0 100000 sil\n.\n\"y/u.lab\"\n"), "f.mlf:5: a second alignment of 'u'");
}

TEST(Alignment, RefusesAStateListWithoutStatesOrWithOneTwice) {
  EXPECT_EQ(error_of([] { StateList("\n \n", "s"); }), "s: holds no state");
  EXPECT_EQ(error_of([] { StateList("a\nb\na\n", "s"); }), "s:3: state 'a' a second time");
  EXPECT_EQ(states.size(), 3);
  EXPECT_EQ(states.find("a"), -1);
}

TEST(Audio, IsReadInEitherByteOrder) {
  const std::string bytes{'\x01', '\x02', '\xff', '\x80'};
  EXPECT_THAT(decode_samples(bytes, "f", ByteOrder::little), testing::ElementsAre(0x0201, -0x7f01));
  EXPECT_THAT(decode_samples(bytes, "f", ByteOrder::big), testing::ElementsAre(0x0102, -128));
  EXPECT_EQ(roughness(bytes, ByteOrder::little), 0x0201 + 0x7f01);
  EXPECT_EQ(roughness(bytes, ByteOrder::big), 0x0102 + 128);
  EXPECT_EQ(error_of([&] { decode_samples(bytes.substr(1), "a.raw", ByteOrder::big); }),
            "a.raw: 3 bytes, which is no whole number of 16 bit samples");
}

}  // namespace
}  // namespace lpsgd
