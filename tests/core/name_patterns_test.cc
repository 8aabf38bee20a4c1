#include "core/name_patterns.h"

#include <gtest/gtest.h>

namespace lpsgd {
namespace {

using Names = std::vector<std::string>;

TEST(NamePatterns, AreTheWildcardsOfTheRules) {
  EXPECT_TRUE(matches_pattern("layer*.conv?.weight", "layer1.0.conv2.weight"));
  EXPECT_FALSE(matches_pattern("layer*.conv?.weight", "layer1.0.conv.weight"));
  EXPECT_TRUE(matches_pattern("{fc,head}.{weight,bias}", "head.bias"));
  EXPECT_FALSE(matches_pattern("{fc,head}.weight", "fcs.weight"));
  EXPECT_FALSE(matches_pattern("", "fc"));
}

TEST(NamePatterns, StandForATensorALayerOrABlock) {
  const auto matches = [](const char* pattern, const std::string& tensor) {
    return NamePatterns({pattern}).matches(tensor);
  };
  for (const char* const pattern :
       {"layer3.0.conv1.weight", "layer3.0.conv1", "layer3.0", "layer3", "layer?"})
    EXPECT_TRUE(matches(pattern, "layer3.0.conv1.weight")) << pattern;
  for (const char* const pattern : {"layer", "layer3.0.conv", "layer3.1", "conv1", "weight", "layer3."})
    EXPECT_FALSE(matches(pattern, "layer3.0.conv1.weight")) << pattern;
  EXPECT_TRUE(NamePatterns({"a", "fc"}).matches("fc.bias"));
  EXPECT_FALSE(NamePatterns().matches("fc.bias"));
  EXPECT_FALSE(matches("", ".weight"));
}

TEST(NamePatterns, AreSeparatedByCommasOutsideBraces) {
  EXPECT_EQ(split_patterns("fc"), (Names{"fc"}));
  EXPECT_EQ(split_patterns("fc,layer4.{0,1},bn"), (Names{"fc", "layer4.{0,1}", "bn"}));
  EXPECT_EQ(split_patterns("a,,b,"), (Names{"a", "", "b", ""}));
  EXPECT_EQ(split_patterns("a{b,c"), (Names{"a{b", "c"}));  // a brace that nothing closes
  EXPECT_EQ(split_patterns(""), (Names{""}));
}

TEST(NamePatterns, ThatMatchNothingAreNamedWithTheNearestName) {
  const Names tensors{"conv1.weight", "layer1.0.conv1.weight", "fc.weight", "fc.bias"};
  const auto unused = [&](Names patterns) { return NamePatterns(std::move(patterns)).unused(tensors); };
  EXPECT_EQ(unused({"fc", "layer1", "*.bias"}), std::nullopt);
  EXPECT_EQ(unused({}), std::nullopt);
  EXPECT_EQ(unused({"fc", "layr1"}), "'layr1' is the name of no layer and no tensor, did you mean 'layer1'?");
  EXPECT_EQ(unused({"classifier"}),
            "'classifier' is the name of no layer and no tensor; tensors have names such as 'conv1.weight'");
}

}  // namespace
}  // namespace lpsgd
