// Bounds on JSON from files.
#include "core/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"

namespace lpsgd {
namespace {

using nlohmann::ordered_json;

std::string error_of(const std::string& text, const JsonBounds& bounds = {}) {
  try {
    parse_json(text, "a.json", bounds);
  } catch (const FileError& e) {
    return e.what();
  }
  return "no error";
}

TEST(Json, KeepsTheOrderOfKeys) {
  EXPECT_EQ(parse_json(R"( {"b": [1, {"c": null}], "a": "x"} )", "a.json").dump(),
            R"({"b":[1,{"c":null}],"a":"x"})");
}

TEST(Json, NamesTheByteThatIsWrong) {
  EXPECT_EQ(error_of("{\"a\": }"), "a.json: not JSON: wrong at byte 7 of 7");
  EXPECT_THAT(error_of(""), testing::StartsWith("a.json: not JSON: "));
  EXPECT_THAT(error_of("1 2"), testing::StartsWith("a.json: not JSON: "));
  EXPECT_THAT(error_of("[\"\xff\"]"), testing::StartsWith("a.json: not JSON: "));
  EXPECT_THAT(error_of("[1e999]"), testing::StartsWith("a.json: not JSON"));
}

TEST(Json, DepthIsBounded) {
  EXPECT_EQ(error_of("[[1]]", {.depth = 2}), "no error");
  EXPECT_EQ(error_of("[[[]]]", {.depth = 2}), "a.json: nested too deeply: more than 2 levels");
  EXPECT_EQ(error_of(std::string(300'000, '[')), "a.json: nested too deeply: more than 16 levels");
  std::string objects;
  for (int i = 0; i < 300'000; ++i) objects += R"({"a":)";
  EXPECT_EQ(error_of(objects), "a.json: nested too deeply: more than 16 levels");
}

TEST(Json, WholeNumbers) {
  const auto read = [](const std::string& text) {
    return whole_number(parse_json(text, "a.json"), "a.json", std::uint64_t{1} << 62);
  };
  EXPECT_EQ(read("0"), 0);
  EXPECT_EQ(read("4611686018427387904"), std::int64_t{1} << 62);
  const std::string digits(107, '1');
  for (const char* text : {"4611686018427387905", "-1", "1.0", "1e3", "true", "null", "\"7\"", "[]",
                           "18446744073709551616", digits.c_str()})
    EXPECT_THROW(read(text), FileError) << text;
  try {
    read('"' + digits + '"');
    FAIL();
  } catch (const FileError& e) {
    EXPECT_EQ(std::string(e.what()), "a.json: \"" + std::string(39, '1') + " is an impossible number");
  }
}

TEST(Json, ValuesAreBounded) {
  EXPECT_EQ(error_of("[1, 2]", {.values = 3}), "no error");
  EXPECT_EQ(error_of("[1, 2, 3]", {.values = 3}), "a.json: more than 3 values");
  EXPECT_EQ(error_of("[[], [], []]", {.values = 3}), "a.json: more than 3 values");
  EXPECT_EQ(error_of(R"({"a":1,"b":2})", {.object_keys = 1}), "a.json: an object of more than 1 keys");
}

TEST(Json, DuplicateKeysAreRefused) {
  EXPECT_EQ(error_of("{\"a\\u001b\": 1, \"a\\u001b\": 2}"), "a.json: duplicate key 'a\\x1b'");
  EXPECT_EQ(error_of(R"([{"a": {"a": 1}}, {"a": 2}])"), "no error");
}

}  // namespace
}  // namespace lpsgd
