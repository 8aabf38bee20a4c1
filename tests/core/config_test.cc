// Configuration: error texts, overrides, round trips.
#include "core/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "core/error.h"
#include "tests/core/temporary_folder.h"

namespace lpsgd::config {
namespace {

struct Options {
  std::int64_t size = 3;
  double rate = 0.5;
  bool fast = false;
  std::string name = "x";
  std::vector<std::string> words;
  int kind = 0;
  std::int64_t depth = 1;
};

void fields(Visitor& v, Options& o) {
  v.field("size", o.size, "how many", Range{.min = 1, .multiple_of = 2});
  v.field("rate", o.rate, "how fast", Range{.min = 0, .min_open = true});
  v.field("fast", o.fast, "whether");
  v.field("name", o.name, "what");
  v.field("words", o.words, "which");
  v.choice("kind", o.kind, {{"red", 0}, {"green", 1}}, "colour");
  v.section("inner", "more", [&](Visitor& inner) { inner.field("depth", o.depth, "how deep"); });
}

std::string error_of(const std::string& text) {
  try {
    Options o;
    read(parse_text(text, "a.yaml"), "", o);
  } catch (const ConfigError& e) {
    EXPECT_EQ(e.exit_status(), 2);
    return e.what();
  }
  return "no error";
}

TEST(Config, TruthIsWrittenAsYaml12HasIt) {
  const auto read_fast = [](const std::string& word, bool before) {
    Options o;
    o.fast = before;
    read(parse_text("{size: 4, rate: 1, fast: " + word + "}", "a"), "", o);
    return o.fast;
  };
  for (const char* word : {"true", "True", "TRUE"}) EXPECT_TRUE(read_fast(word, false)) << word;
  for (const char* word : {"false", "False", "FALSE"}) EXPECT_FALSE(read_fast(word, true)) << word;
  for (const char* word : {"tRUE", "yes", "on"}) EXPECT_THROW(read_fast(word, false), ConfigError) << word;
  EXPECT_TRUE(to_bool(Value::plain("TRUE"), "fast")) << "as an environment variable has it";
  // A text of these letters stays a text.
  const Options words{.size = 4, .rate = 1, .name = "True", .words = {"FALSE", "true", "null"}};
  Options back;
  read(parse_text(emit(write(words)), "emitted"), "", back);
  EXPECT_EQ(back.name, words.name);
  EXPECT_EQ(back.words, words.words);
}

TEST(Config, ReadsEveryType) {
  Options o;
  read(
      parse_text(
          "{size: 4, rate: 1e-4, fast: true, name: abc, words: [a, b], kind: green, inner: {depth: 9}}", "a"),
      "", o);
  EXPECT_EQ(o.size, 4);
  EXPECT_EQ(o.rate, 1e-4);
  EXPECT_TRUE(o.fast);
  EXPECT_EQ(o.name, "abc");
  EXPECT_THAT(o.words, testing::ElementsAre("a", "b"));
  EXPECT_EQ(o.kind, 1);
  EXPECT_EQ(o.depth, 9);
}

TEST(Config, ErrorsNamePlaceKeyAndWhatIsAllowed) {
  EXPECT_EQ(error_of("size: 4\nsizes: 5\n"),
            "a.yaml:2:1: sizes: unknown key, did you mean 'size'?; allowed here: size, rate, fast, name, "
            "words, kind, inner");
  EXPECT_EQ(error_of("inner:\n  dept: 1\n"),
            "a.yaml:2:3: inner.dept: unknown key, did you mean 'depth'?; allowed here: depth");
  EXPECT_EQ(error_of("size: many"),
            "a.yaml:1:7: size: expected an integer >= 1 that is a multiple of 2, got 'many'");
  EXPECT_EQ(error_of("size: 3"),
            "a.yaml:1:7: size: expected an integer >= 1 that is a multiple of 2, got '3'");
  EXPECT_EQ(error_of("size: 4.0"),
            "a.yaml:1:7: size: expected an integer >= 1 that is a multiple of 2, got '4.0'");
  EXPECT_EQ(error_of("size: '4'"),
            "a.yaml:1:7: size: expected an integer >= 1 that is a multiple of 2, got the string \"4\"");
  EXPECT_EQ(error_of("rate: 0"), "a.yaml:1:7: rate: expected a number > 0, got '0'");
  EXPECT_EQ(error_of("rate: .nan"), "a.yaml:1:7: rate: expected a number > 0, got '.nan'");
  EXPECT_EQ(error_of("rate: 1e39"), "a.yaml:1:7: rate: 1e39 is beyond float32's largest number, 3.4e38");
  EXPECT_EQ(error_of("fast: 1"), "a.yaml:1:7: fast: expected true or false, got '1'");
  EXPECT_EQ(error_of("kind: gren"),
            "a.yaml:1:7: kind: 'gren' is not known, did you mean 'green'?; allowed: red, green");
  EXPECT_EQ(error_of("inner: 3"), "a.yaml:1:8: inner: expected a map, got '3'");
  EXPECT_EQ(error_of("size: 2\nsize: 4"), "a.yaml:2:1: duplicate key 'size'");
  EXPECT_EQ(error_of("size: 2\n<<: {size: 4}"),
            "a.yaml:2:1: merge keys ('<<') are not part of YAML 1.2; write the keys out");
  EXPECT_THAT(error_of("size: [2"), testing::StartsWith("a.yaml:1:"));
  EXPECT_THAT(error_of("words: {a: 1}"), testing::HasSubstr("words: expected a list of words, got a map"));
}

// A text that begins with zeros would be read as UTF-32.
TEST(Config, ControlCharactersAreRefused) {
  for (const std::string& text : {std::string("\2\0\0\0\0\0\0\n", 8), std::string("\2")})
    EXPECT_THAT(error_of(text), testing::HasSubstr("1:1: byte 0x02 is a control character"));
  EXPECT_THAT(error_of("size: 4\n\x7f"), testing::HasSubstr("2:1: byte 0x7f is a control character"));
  EXPECT_EQ(error_of("size:\t4\r\n"), error_of("size: 4\n"));
}

TEST(Config, DeepNestingAndAliasBombsAreRefused) {
  EXPECT_THAT(error_of(std::string(200, '[') + std::string(200, ']')), testing::HasSubstr("nested deeper"));
  std::string bomb = "a: &a [x,x,x,x,x,x,x,x,x,x]\n";
  for (char c = 'b'; c < 'k'; ++c)
    bomb += std::string(1, c) + ": &" + c + " [" + [&] {
      std::string s;
      for (int i = 0; i < 10; ++i) s += std::string(i ? ",*" : "*") + char(c - 1);
      return s;
    }() + "]\n";
  EXPECT_THAT(error_of(bomb), testing::HasSubstr("values"));
}

TEST(Config, OverridesReplaceAndNameTheOption) {
  Value root = parse_text("size: 2\ninner: {depth: 1}\nwords: [a, b]\n", "a.yaml");
  apply_override(root, "inner.depth=5");
  apply_override(root, "words.1=c");
  apply_override(root, "rate=0.25");
  Options o;
  read(root, "", o);
  EXPECT_EQ(o.depth, 5);
  EXPECT_THAT(o.words, testing::ElementsAre("a", "c"));
  EXPECT_EQ(o.rate, 0.25);
  apply_override(root, "sise=5");
  try {
    read(root, "", o);
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(), testing::StartsWith("--set sise=5: sise: unknown key, did you mean 'size'?"));
  }
  EXPECT_THROW(apply_override(root, "novalue"), ConfigError);
  EXPECT_THROW(apply_override(root, "size.deeper=1"), ConfigError);
  EXPECT_THROW(apply_override(root, "words.9=1"), ConfigError);
  // The tree could be written, but not be read again.
  EXPECT_THROW(apply_override(root, "inner.\x90=1"), ConfigError);
  EXPECT_THROW(apply_override(root, "inner.\x1b=1"), ConfigError);
  EXPECT_THROW(apply_override(root, "inner." + std::string(201, 'k') + "=1"), ConfigError);
  const auto nested = [](int words, int brackets) {
    std::string path = "k";
    for (int i = 1; i < words; ++i) path += ".k";
    return path + "=" + std::string(static_cast<std::size_t>(brackets), '[') +
           std::string(static_cast<std::size_t>(brackets), ']');
  };
  Value deep = Value::map();
  EXPECT_THROW(apply_override(deep, nested(40, 26)), ConfigError);
  apply_override(deep, nested(40, 25));  // the innermost list is empty: 64 levels
  parse_text(emit(deep), "deep.yaml");
}

TEST(Config, EnvironmentOnlyInQuotedStrings) {
  ::setenv("LPSGD_TEST_VARIABLE", "/data", 1);
  ::unsetenv("LPSGD_TEST_UNSET");
  Options o;
  read(parse_text("name: \"${LPSGD_TEST_VARIABLE}/x\"", "a"), "", o);
  EXPECT_EQ(o.name, "/data/x");
  EXPECT_EQ(error_of("name: ${LPSGD_TEST_VARIABLE}/x"),
            "a.yaml:1:7: name: an environment variable needs quotes: \"${LPSGD_TEST_VARIABLE}/x\"");
  EXPECT_EQ(error_of("name: \"${LPSGD_TEST_UNSET}\""),
            "a.yaml:1:7: name: environment variable LPSGD_TEST_UNSET is not set");
  ::setenv("LPSGD_TEST_VARIABLE", "/d\x90", 1);
  EXPECT_EQ(error_of("name: \"${LPSGD_TEST_VARIABLE}\""),
            "a.yaml:1:7: name: environment variable LPSGD_TEST_VARIABLE: byte 0x90 is not UTF-8 text");
  read(parse_text("name: \"${LPSGD_TEST_UNSET}\"", "a"), "", o, Environment::keep);
  EXPECT_EQ(o.name, "${LPSGD_TEST_UNSET}");
}

TEST(Config, WritesWhatItReads) {
  Options o{
      .size = 8, .rate = 1e-5, .fast = true, .name = "a: b", .words = {"p", "3"}, .kind = 1, .depth = -2};
  Options back;
  const std::string text = emit(write(o));
  read(parse_text(text, "emitted"), "", back);
  EXPECT_EQ(emit(write(back)), text);
  EXPECT_EQ(back.rate, o.rate);
  EXPECT_EQ(back.name, o.name);
  EXPECT_EQ(back.words, o.words);
}

bool same(const Value& a, const Value& b) {
  if (a.kind != b.kind || a.scalar != b.scalar || a.items.size() != b.items.size() ||
      a.entries.size() != b.entries.size())
    return false;
  for (std::size_t i = 0; i < a.items.size(); ++i)
    if (!same(a.items[i], b.items[i])) return false;
  for (std::size_t i = 0; i < a.entries.size(); ++i)
    if (a.entries[i].key != b.entries[i].key || !same(a.entries[i].value, b.entries[i].value)) return false;
  return true;
}

// Found by tests/fuzz: each was once written as a text that reads as something else, or as none.
TEST(Config, WhatIsWrittenReadsBackTheSame) {
  for (const std::string text : {"{}",
                                 "[]",
                                 "a: b, c",
                                 "a: b]",
                                 "[-]",
                                 "a: \"Null\"",
                                 "a: \"NULL\"",
                                 "\"Null\": 1",
                                 "a: 'b: c'",
                                 "a: b#c",
                                 "a: \"...\"",
                                 "a: \"line\\nline\"",
                                 "a: \"\\x7f\\t\\r\\0\"",
                                 "a: \"\"",
                                 "[x:y]",
                                 "[a: b]",
                                 "- [[], {}]\n- - x",
                                 "a: m\xc3\xbcller",
                                 "{a: -1, b: -.5, c: +3}",
                                 "a: \"{b\"",
                                 "a: f($x, 2)",
                                 "a: [$x, $y - 1]",
                                 "b:\n  - a: g($x, {1})\n  - c",
                                 "a: {b: \"f(1, 2)\", c: $d + 1}"}) {
    const Value tree = parse_text(text, "a.yaml");
    const std::string written = emit(tree);
    EXPECT_TRUE(same(parse_text(written, "written.yaml"), tree)) << text << "\nwas written as\n" << written;
    EXPECT_EQ(emit(parse_text(written, "written.yaml")), written);
  }
}

TEST(Config, ExpressionsStayWithoutQuotes) {
  const Value tree =
      parse_text("network: {filters: 4 * $width, if: 'f($x, 2)', first: [{size: \"$y\"}]}", "a");
  EXPECT_EQ(emit(tree), "network:\n  filters: 4 * $width\n  if: \"f($x, 2)\"\n  first: [{size: \"$y\"}]\n");
  EXPECT_EQ(emit(parse_text("a:\n  b:\n    c: f($x, 2)", "a")), "a:\n  b:\n    c: f($x, 2)\n");
}

TEST(Config, YamlThatIsNotOursIsRefused) {
  EXPECT_THAT(error_of("size: !!int 4"), testing::HasSubstr("1:7: tags are not taken"));
  EXPECT_THAT(error_of("!x size: 4"), testing::HasSubstr("1:1: tags are not taken"));
  EXPECT_THAT(error_of("words: !set {a: 1}"), testing::HasSubstr("1:8: tags are not taken, this has '!set'"));
  EXPECT_THAT(error_of("name: \"\\N\""),
              testing::HasSubstr("1:7: text with \\N or \\_, which are not taken"));
  EXPECT_THAT(error_of("\"\\_\": 1"), testing::HasSubstr("1:1: text with \\N or \\_, which are not taken"));
  EXPECT_THAT(error_of("name: a\n\n  b"), testing::HasSubstr("1:7: a line break in a value without quotes"));
  EXPECT_THAT(error_of("name: a\r\rb"), testing::HasSubstr("1:7: a line break in a value without quotes"));
  EXPECT_THAT(error_of(" --- $x"), testing::HasSubstr("1:2: a value that begins with '---' needs quotes"));
  EXPECT_THAT(error_of("name: ..."), testing::HasSubstr("1:7: a value that begins with '...' needs quotes"));
  EXPECT_THAT(error_of(std::string(201, 'k') + ": 1"),
              testing::HasSubstr("1:1: a key of more than 200 bytes"));
}

TEST(Config, NumbersReadBackExactly) {
  for (const double x : {0.1, 1e-4, 1e22, 123456789.0, 5e-324, 3.4e38, -3.4e38})
    EXPECT_EQ(to_number(parse_text(number_text(x), "a"), "x"), x) << number_text(x);
  EXPECT_EQ(number_text(1e-5), "1.0e-05");
}

// Found by tests/fuzz: yaml-cpp's LoadAll never returns from some of these.
TEST(Config, TextThatBeginsNoNodeIsRefused) {
  for (const char* text : {",'", ",", "a: 1\n---\nb: 2", "]", "}", ", a"}) {
    try {
      parse_text(text, "a.yaml");
      ADD_FAILURE() << text << " was taken";
    } catch (const ConfigError&) {
    }
  }
  EXPECT_TRUE(parse_text("", "a.yaml").is_null());
  EXPECT_TRUE(parse_text("# nothing\n", "a.yaml").is_null());
  EXPECT_TRUE(parse_text("---\n{a: 1}\n...\n", "a.yaml").is_map());
}

TEST(Config, MapsOfManyKeys) {
  std::string text;
  for (int i = 0; i < 40'000; ++i) text += fmt::format("k{}: 1\n", i);
  EXPECT_EQ(parse_text(text, "a.yaml").entries.size(), 40'000u);
  EXPECT_THAT(error_of(text + "k7: 2\n"), testing::HasSubstr("a.yaml:40001:1: duplicate key 'k7'"));
}

using ConfigFile = TemporaryFolder;

TEST_F(ConfigFile, IsBounded) {
  const std::string path = write("large.yaml", "a: " + std::string(1 << 20, 'x'));
  for (const std::string& bad : {path, std::string("/dev/zero")}) try {
      parse_file(bad);
      ADD_FAILURE() << bad << " was read";
    } catch (const ConfigError& e) {
      EXPECT_THAT(std::string(e.what()),
                  testing::AnyOf(path + ": too large: 1048579 bytes, expected 1048576 or fewer",
                                 std::string("/dev/zero: cannot be read: not a regular file")));
    }
}

TEST(Config, ErrorsEscapeControlCharacters) {
  EXPECT_EQ(error_of("size: \"\\e[2J\\n\""),
            "a.yaml:1:7: size: expected an integer >= 1 that is a multiple of 2, got the string "
            "\"\\x1b[2J\\x0a\"");
  EXPECT_THAT(error_of("\"\\e[2J\": 1"), testing::HasSubstr("\\x1b[2J: unknown key"));
  EXPECT_THAT(error_of(std::string(300'000, '[')), testing::StartsWith("a.yaml:"));
}

}  // namespace
}  // namespace lpsgd::config
