#include "quant/policy.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace lpsgd {
namespace {

TensorInfo tensor(const std::string& name, TensorKind kind, std::int64_t elements) {
  return TensorInfo{.name = name, .kind = kind, .shape = {elements}, .elements = elements};
}

PolicySpec parse(const std::string& text) {
  PolicySpec spec;
  config::read(config::parse_text(text, "a.yaml"), "exchange", spec);
  return spec;
}

std::string error_of(const std::string& text) {
  try {
    parse(text);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "no error";
}

TEST(Policy, AutoIsTheLargestThresholdAboveNinetyNinePercent) {
  const auto sizes = [](std::vector<std::int64_t> ns) {
    std::vector<TensorInfo> out;
    for (const std::int64_t n : ns) out.push_back(tensor("t", TensorKind::dense, n));
    return auto_min_elements(out);
  };
  EXPECT_EQ(sizes({}), 0);
  EXPECT_EQ(sizes({5}), 5);
  EXPECT_EQ(sizes({10, 990}), 10);       // 990 of 1000 is not more than 99 %
  EXPECT_EQ(sizes({9, 991}), 991);       // this is
  EXPECT_EQ(sizes({100, 1, 100}), 100);  // equal sizes count together
  EXPECT_EQ(sizes({1, 1, 1}), 1);
  EXPECT_EQ(sizes({0, 0}), 0);
}

TEST(Policy, RulesBeforeTheThreshold) {
  const std::vector<TensorInfo> tensors = {
      tensor("conv1.weight", TensorKind::conv, 5000), tensor("layer1.0.conv1.weight", TensorKind::conv, 9000),
      tensor("layer1.0.bn1.weight", TensorKind::norm, 16), tensor("fc.weight", TensorKind::dense, 700),
      tensor("fc.bias", TensorKind::bias, 10)};
  const PolicySpec spec = parse(
      "{codec: {kind: qsgd}, min_elements: 700, rules: [{name: 'layer1.*', kind: conv, codec: {kind: "
      "onebit}}, "
      "{name: 'fc.b?as', codec: {kind: bf16}}, {kind: conv, codec: {kind: fp16}}]}");
  std::vector<std::string> got;
  for (const CodecSpec& c : assign_codecs(spec, tensors)) got.emplace_back(c.kind);
  EXPECT_EQ(got, (std::vector<std::string>{"fp16", "onebit", "none", "qsgd", "bf16"}));
  EXPECT_EQ(min_elements(spec, tensors), 700);
  EXPECT_EQ(min_elements(PolicySpec{}, tensors), 700);  // 14700 of 14726 values
}

// docs/exchange.md's lines.
TEST(Policy, OneLinePolicies) {
  const std::vector<TensorInfo> tensors = {
      tensor("conv1.weight", TensorKind::conv, 432), tensor("bn1.weight", TensorKind::norm, 16),
      tensor("layer1.0.conv1.weight", TensorKind::conv, 2304), tensor("fc.weight", TensorKind::dense, 640),
      tensor("fc.bias", TensorKind::bias, 10)};
  const auto kinds = [&](const char* text) {
    std::string out;
    for (const CodecSpec& c : assign_codecs(parse(text), tensors)) out += std::string(c.kind) + " ";
    return out;
  };
  EXPECT_EQ(kinds("{codec: none, rules: [{kind: conv, codec: {kind: qsgd, bits: 4}}]}"),
            "qsgd none qsgd none none ");
  EXPECT_EQ(
      kinds("{codec: {kind: qsgd, bits: 4}, min_elements: 0, rules: [{name: '{conv1,fc}.*', codec: none}]}"),
      "none qsgd qsgd none none ");
}

TEST(Policy, Globs) {
  const auto hit = [](const std::string& pattern, const std::string& name) {
    PolicySpec spec;
    spec.rules = {
        {.name = pattern, .kind = {}, .codec = parse_codec(config::Value::plain("onebit"), "codec")}};
    return assign_codecs(spec, {tensor(name, TensorKind::conv, 1)})[0].kind == "onebit";
  };
  EXPECT_TRUE(hit("{a,b}.*", "a.w") && hit("{a,b}.*", "b.w") && hit("x{1,22}y", "x22y") && hit("{a}", "a"));
  EXPECT_TRUE(hit("{,a}b", "b") && hit("a{*c,d}e", "abce") && hit("{a,b}{c,d}", "bc"));
  EXPECT_FALSE(hit("{a,b}.*", "c.w") || hit("{a,b}", "a,b") || hit("{a,b}{c,d}", "ab"));
  EXPECT_TRUE(hit("{a", "{a") && hit("a}", "a}"));  // without a partner they are themselves
  EXPECT_TRUE(hit("*", "a") && hit("a*c", "abcbc") && hit("a?c", "abc") && hit("", "a") && hit("a**", "a"));
  EXPECT_FALSE(hit("a", "ab") || hit("a?", "a") || hit("*b", "abc") || hit("a.c", "abc") || hit("A", "a"));
}

TEST(Policy, RoundTrips) {
  for (const char* text :
       {"{}", "{codec: {kind: qsgd, bits: 2}, min_elements: 100}",
        "{codec: onebit, rules: [{name: 'a.*', kind: embedding, codec: none}, {codec: {kind: fp16}}]}"}) {
    const config::Value once = config::write(parse(text));
    const config::Value twice = config::write(parse(config::emit(once)));
    EXPECT_EQ(config::emit(once), config::emit(twice)) << text;
  }
  const PolicySpec spec = parse("{rules: [{name: 'a.*', kind: lstm, codec: onebit}]}");
  EXPECT_FALSE(spec.min_elements);
  ASSERT_EQ(spec.rules.size(), 1u);
  EXPECT_EQ(spec.rules[0].kind, TensorKind::lstm);
}

TEST(Policy, Errors) {
  EXPECT_EQ(error_of("{min_elements: -1}"),
            "a.yaml:1:16: exchange.min_elements: expected auto or an integer >= 0, got '-1'");
  EXPECT_EQ(error_of("{rules: {}}"), "a.yaml:1:9: exchange.rules: expected a list of {name, kind, codec}");
  EXPECT_EQ(error_of("{rules: [{name: a}]}"),
            "a.yaml:1:10: exchange.rules[0]: the key 'codec' is missing; it must be given");
  EXPECT_EQ(
      error_of("{rules: [{kind: con, codec: none}]}"),
      "a.yaml:1:17: exchange.rules[0].kind: 'con' is not known, did you mean 'conv'?; allowed: conv, dense, "
      "norm, bias, lstm, embedding");
  EXPECT_EQ(error_of("{rules: [{codec: {kind: qsgd, bits: 5}}]}"),
            "a.yaml:1:37: exchange.rules[0].codec.bits: '5' is not known; allowed: 2, 4, 8, 16");
  EXPECT_EQ(error_of("{rules: [{nam: a, codec: none}]}"),
            "a.yaml:1:11: exchange.rules[0].nam: unknown key, did you mean 'name'?; allowed here: name, "
            "kind, codec");
}

}  // namespace
}  // namespace lpsgd
