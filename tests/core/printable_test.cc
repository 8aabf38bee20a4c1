#include "core/printable.h"

#include <gtest/gtest.h>

namespace lpsgd {
namespace {

TEST(Printable, EscapesWhatATerminalActsOn) {
  EXPECT_EQ(printable("a\x1b[31mb\r\n\t\x7f"), "a\\x1b[31mb\\x0d\\x0a\\x09\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"), "\\xc2\\x9b") << "U+009B is an escape sequence's start, too";
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\x00");
}

TEST(Printable, KeepsText) {
  for (const char* text : {"", "a.b: 'c' \\x1b", "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x99\x82"})
    EXPECT_EQ(printable(text), text);
}

TEST(Printable, EscapesBytesThatAreNoUtf8) {
  EXPECT_EQ(printable("\xff"
                      "a\xc3"),
            "\\xffa\\xc3");
  EXPECT_EQ(printable("\xc0\x9b\xed\xa0\x80"), "\\xc0\\x9b\\xed\\xa0\\x80");
}

TEST(Printable, LinesOfAMessageStay) {
  EXPECT_EQ(printable_lines("a\x1b\nb\r\n"), "a\\x1b\nb\\x0d\n");
}

TEST(Printable, FindsTheFirstByteThatIsNoUtf8) {
  EXPECT_EQ(valid_utf8_prefix("ab"), 2u);
  EXPECT_EQ(valid_utf8_prefix("a\xc3\xa9\xc3"), 3u);
  EXPECT_EQ(valid_utf8_prefix("\xf4\x90\x80\x80"), 0u);
}

}  // namespace
}  // namespace lpsgd
