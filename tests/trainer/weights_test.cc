#include "trainer/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "core/safetensors.h"
#include "nn/graph.h"
#include "tests/trainer/small_run.h"

namespace lpsgd {
namespace {

/// A file with tensors of the small network, each filled with its number in the file, counted from 1.
class GivenWeights : public testing::Test {
 protected:
  void write(std::vector<StoredTensor> tensors) {
    std::vector<std::vector<float>> values;
    for (StoredTensor& t : tensors) {
      std::int64_t elements = 1;
      for (const std::int64_t n : t.shape) elements *= n;
      values.emplace_back(static_cast<std::size_t>(elements), static_cast<float>(values.size() + 1));
      t.values = values.back();
    }
    write_safetensors(path, tensors);
  }
  /// All that the network has, but for the names in `without`.
  std::vector<StoredTensor> all(const std::vector<std::string>& without = {}) const {
    std::vector<StoredTensor> out;
    for (const TensorInfo& t : model.spec.tensors()) out.push_back({t.name, t.shape, {}});
    for (const GraphBuffer& b : model.spec.graph().buffers) out.push_back({b.name, b.shape, {}});
    std::erase_if(out, [&](const StoredTensor& t) { return std::ranges::count(without, t.name) > 0; });
    return out;
  }
  std::string error(const std::vector<std::string>& skip = {}) const {
    try {
      read_initial_weights(path, model.spec, skip);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "no error";
  }
  std::span<const float> of(const std::string& name) {
    for (const TensorInfo& t : model.spec.tensors())
      if (t.name == name)
        return model.network.parameters().subspan(static_cast<std::size_t>(t.offset),
                                                  static_cast<std::size_t>(t.elements));
    for (const NamedBuffer& b : model.network.buffers())
      if (b.name == name) return b.values;
    ADD_FAILURE() << name;
    return {};
  }

  TestFolder folder;
  const std::string path = folder.path() + "/start.safetensors";
  SmallModel model{small_run(), 0, 1};
};

TEST_F(GivenWeights, SkippedTensorsStayAsTheyAre) {
  write(all());
  const std::vector<float> before = values(model.network.parameters());
  const Weights weights = read_initial_weights(path, model.spec, {"fc", "bn.running_var"});
  EXPECT_THAT(skipped(model.spec, weights), testing::ElementsAre("fc.weight", "fc.bias", "bn.running_var"));
  set_weights(model.network, weights);
  float number = 0;
  for (const char* const name : {"conv.weight", "bn.weight", "bn.bias"})
    EXPECT_THAT(of(name), testing::Each(++number)) << name;
  EXPECT_THAT(of("bn.running_mean"), testing::Each(6));
  EXPECT_THAT(of("bn.running_var"), testing::Each(1)) << "as it is initialized";
  const auto fc = model.spec.tensors()[3];
  ASSERT_EQ(fc.name, "fc.weight");
  EXPECT_THAT(of("fc.weight"),
              testing::ElementsAreArray(before.data() + fc.offset, static_cast<std::size_t>(fc.elements)));
  EXPECT_NE(of("fc.weight")[0], 4);
}

TEST_F(GivenWeights, WithoutSkippedOnesAllAreTaken) {
  write(all());
  const Weights weights = read_initial_weights(path, model.spec, {});
  EXPECT_THAT(skipped(model.spec, weights), testing::IsEmpty());
  set_weights(model.network, weights);
  EXPECT_THAT(of("fc.bias"), testing::Each(5));
  EXPECT_THAT(of("bn.running_var"), testing::Each(7));
  EXPECT_NE(weights.checksum, read_initial_weights(path, model.spec, {"fc.bias"}).checksum);
}

TEST_F(GivenWeights, SkippedOnesMayBeMissingWiderOrMore) {
  std::vector<StoredTensor> tensors = all({"fc.weight", "fc.bias"});
  write(tensors);
  EXPECT_EQ(error(), "--init: " + path + ": has no tensor 'fc.weight'; --init-skip fc leaves that layer out");
  EXPECT_EQ(error({"fc"}), "no error");
  EXPECT_EQ(error({"fc.weight"}),
            "--init: " + path + ": has no tensor 'fc.bias'; --init-skip fc leaves that layer out");
  tensors.push_back({"fc.weight", {1000, 7}, {}});
  tensors.push_back({"head.2.bias", {9}, {}});
  write(tensors);
  EXPECT_EQ(error({"fc"}), "--init: " + path +
                               ": holds 'head.2.bias', which the network does not have; --init-skip head.2 "
                               "leaves that layer out");
  EXPECT_EQ(error({"fc", "head.2"}), "no error");
  EXPECT_EQ(error({"fc", "head"}), "no error");
}

TEST_F(GivenWeights, EachSkippedNameMustBeKnown) {
  write(all({"bn.weight"}));
  EXPECT_EQ(
      error({"bn", "cnv"}),
      "--init-skip: 'cnv' is the name of no layer and no tensor, did you mean 'conv'? (looked for in the "
      "network and in " +
          path + ")");
  EXPECT_EQ(error({"bn", ""}), "--init-skip: an empty name");
}

}  // namespace
}  // namespace lpsgd
