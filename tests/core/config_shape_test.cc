// What is collected of declared fields, and the table and the schema that are written from it.
#include "core/config_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace lpsgd::config {
namespace {

struct Options {
  std::int64_t size = 4;
  double rate = 0.5;
  double share = 0.25;
  bool fast = false;
  std::string name;
  std::vector<std::string> words{"a", "b"};
  int kind = 1;
  std::int64_t depth = 1;
};

void fields(Visitor& v, Options& o) {
  v.required();
  v.field("size", o.size, "how many", Range{.min = 1, .max = 1e9, .multiple_of = 2});
  v.field("rate", o.rate, "how fast", Range{.min = 0, .min_open = true});
  v.field("share", o.share, "how much", Range{.min = 0, .max = 1, .max_open = true});
  v.field("fast", o.fast, "whether");
  v.field("name", o.name, "what");
  v.field("words", o.words, "which");
  v.choice("kind", o.kind, {{"true", 0}, {"4", 1}, {"four", 2}}, "one of several");
  v.shape([] { return Shape::choice({Shape::word({"none"}), Shape::table(Shape::number())}); });
  v.custom(
      "table", "numbers by number", "whose", [](const Value&, const std::string&) {}, [] { return Value(); });
  v.custom(
      "plain", "anything", "no shape is said", [](const Value&, const std::string&) {},
      [] { return Value(); });
  v.section("inner", "more", [&](Visitor& inner) { inner.field("depth", o.depth, "how deep"); });
}

std::vector<Field> described() {
  Describer describer;
  Options options;
  fields(describer, options);
  return describer.fields();
}

TEST(ConfigShape, TableHasARowForEachField) {
  EXPECT_EQ(markdown_table(described(), "a."),
            "| key | value | default | meaning |\n|---|---|---|---|\n"
            "| `a.size` | integer from 1 to 1000000000 that is a multiple of 2 | `required` | how many |\n"
            "| `a.rate` | number > 0 | `0.5` | how fast |\n"
            "| `a.share` | number >= 0 and < 1 | `0.25` | how much |\n"
            "| `a.fast` | true or false | `false` | whether |\n"
            "| `a.name` | string | `empty` | what |\n"
            "| `a.words` | list of words | `[a, b]` | which |\n"
            "| `a.kind` | true, 4, four | `4` | one of several |\n"
            "| `a.table` | numbers by number | `none` | whose |\n"
            "| `a.plain` | anything | `none` | no shape is said |\n"
            "| `a.inner` | section | `none` | more |\n");
}

TEST(ConfigShape, SchemaHasTypesLimitsAndDefaults) {
  const auto schema = nlohmann::json::parse(json_schema(described(), "a title"));
  EXPECT_EQ(schema["title"], "a title");
  EXPECT_EQ(schema["additionalProperties"], false);
  EXPECT_EQ(schema["required"], nlohmann::json({"size"}));
  const auto& keys = schema["properties"];
  EXPECT_EQ(keys["size"],
            nlohmann::json::parse(R"({"description": "how many", "type": "integer", "minimum": 1,
                                                    "maximum": 1000000000, "multipleOf": 2})"));
  EXPECT_EQ(keys["rate"], nlohmann::json::parse(R"({"description": "how fast", "type": "number",
                                                    "exclusiveMinimum": 0, "default": 0.5})"));
  EXPECT_EQ(keys["share"],
            nlohmann::json::parse(R"({"description": "how much", "type": "number", "minimum": 0,
                                      "exclusiveMaximum": 1, "default": 0.25})"));
  EXPECT_EQ(keys["words"]["items"]["type"], "string");
  EXPECT_EQ(keys["words"]["default"], nlohmann::json({"a", "b"}));
  EXPECT_EQ(keys["kind"]["enum"], nlohmann::json::parse(R"([true, 4, "four"])")) << "as YAML reads the words";
  EXPECT_EQ(keys["table"]["anyOf"][1]["patternProperties"]["^[0-9]+$"]["type"], "number");
  EXPECT_FALSE(keys["plain"].contains("type"));
  EXPECT_EQ(keys["inner"]["properties"]["depth"]["default"], 1);
  EXPECT_THAT(keys["inner"]["type"], testing::ElementsAre("object", "null"));
}

TEST(ConfigShape, ASectionWithARequiredKeyIsRequired) {
  Describer describer;
  describer.section("outer", "", [](Visitor& v) {
    Options options;
    fields(v, options);
  });
  const auto schema = nlohmann::json::parse(json_schema(describer.fields(), ""));
  EXPECT_EQ(schema["required"], nlohmann::json({"outer"}));
  EXPECT_EQ(schema["properties"]["outer"]["type"], "object");
}

TEST(ConfigShape, ANamedShapeIsDefinedOnce) {
  const auto named = [] {
    Shape shape = Shape::choice({Shape::integer()});
    shape.name = "number";
    return shape;
  };
  Describer describer;
  for (const char* key : {"a", "b"}) {
    describer.shape(named);
    describer.custom(
        key, "", "", [](const Value&, const std::string&) {}, [] { return Value(); });
  }
  const auto schema = nlohmann::json::parse(json_schema(describer.fields(), ""));
  EXPECT_EQ(schema["definitions"].size(), 1u);
  for (const char* key : {"a", "b"})
    EXPECT_EQ(schema["properties"][key]["allOf"][0]["$ref"], "#/definitions/number");
}

}  // namespace
}  // namespace lpsgd::config
