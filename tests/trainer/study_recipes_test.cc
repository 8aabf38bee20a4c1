// configs/study against the numbers that the EDBT 2018 study and CNTK's configurations of its time published.
// The table is written from these, not from the files.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/error.h"
#include "nn/graph.h"
#include "nn/network_spec.h"
#include "nn/shape.h"
#include "quant/policy.h"
#include "trainer/run_config.h"

namespace lpsgd {
namespace {

/// Rates as CNTK writes them: "0.1*25" is {25, 0.1}; the last one holds to the end.
using Rates = std::vector<std::pair<std::int64_t, double>>;

struct Recipe {
  const char* name;
  double millions;  // of parameters
  const char* dataset;
  std::int64_t epochs;
  std::map<std::int64_t, std::int64_t> batch;  // by number of ranks
  std::function<double(std::int64_t)> rate;    // of an epoch, from 0; for unit-gain momentum
  double l2;
  bool decays_norm;
};

std::function<double(std::int64_t)> steps(Rates rates) {
  return [rates = std::move(rates)](std::int64_t epoch) {
    for (const auto& [count, rate] : rates) {
      if (epoch < count) return rate;
      epoch -= count;
    }
    return rates.back().second;
  };
}

std::map<std::int64_t, std::int64_t> of_16(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d,
                                           std::int64_t e) {
  return {{1, a}, {2, b}, {4, c}, {8, d}, {16, e}};
}

std::vector<Recipe> recipes() {
  const auto residual = steps({{30, 1}, {30, 0.1}, {30, 0.01}, {30, 0.001}});
  // AlexNet: CNTK's decays from the study's initial rate.
  return {
      {"alexnet", 62, "imagenet", 112, of_16(256, 256, 256, 256, 256),
       steps({{25, 0.07}, {25, 0.007}, {25, 7e-4}, {25, 7e-5}, {12, 7e-6}}), 5e-4, true},
      {"vgg19", 143, "imagenet", 80, of_16(32, 64, 128, 128, 128),
       steps({{20, 0.1}, {20, 0.01}, {20, 0.001}, {10, 1e-4}, {10, 1e-5}}), 5e-4, true},
      {"bn_inception", 11, "imagenet", 300, of_16(64, 128, 256, 256, 256),
       [](std::int64_t epoch) { return 3.6 * std::pow(0.94, std::floor(static_cast<double>(epoch) / 2)); },
       1e-4, true},
      {"resnet50", 25, "imagenet", 120, of_16(32, 64, 128, 256, 256), residual, 1e-4, false},
      {"resnet152", 60, "imagenet", 120, of_16(16, 32, 64, 128, 256), residual, 1e-4, false},
      {"resnet110", 1.7, "cifar10", 160, of_16(128, 128, 128, 128, 128),
       steps({{1, 0.1}, {80, 1}, {40, 0.1}, {39, 0.01}}), 1e-4, true},
      {"lstm_an4", 13, "an4", 20, {{1, 16}, {2, 16}}, steps({{20, 0.5}}), 0, true}};
}

RunConfig load(const std::string& name, const std::vector<std::string>& overrides = {}) {
  return load_run_config(std::string(LPSGD_SOURCE_DIR "/configs/study/") + name + ".yaml", overrides,
                         config::Environment::if_set);
}

TEST(StudyRecipes, AreAsPublished) {
  for (const Recipe& published : recipes()) {
    SCOPED_TRACE(published.name);
    const RunConfig run = load(published.name);
    EXPECT_EQ(run.data.dataset, published.dataset);
    EXPECT_EQ(run.train.epochs, published.epochs);
    EXPECT_EQ(run.train.batch_sizes, published.batch);
    // The published rates have their meaning with CNTK's momentum.
    EXPECT_TRUE(run.optimizer.momentum_unit_gain);
    EXPECT_FALSE(run.optimizer.nesterov);
    EXPECT_EQ(run.optimizer.clip_norm, 0);
    EXPECT_EQ(run.optimizer.weight_decay, published.l2);
    EXPECT_EQ(run.optimizer.no_decay.empty(), published.decays_norm);
    EXPECT_EQ(run.schedule.warmup_epochs, 0);
    constexpr std::int64_t per_epoch = 7;
    for (std::int64_t epoch = 0; epoch < published.epochs; ++epoch) {
      const double rate = published.rate(epoch);
      for (const std::int64_t step : {epoch * per_epoch, (epoch + 1) * per_epoch - 1})
        EXPECT_NEAR(learning_rate(run.schedule, step, per_epoch, run.train.epochs), rate, 1e-9 * rate)
            << epoch;
      const bool without = run.data.dataset == "an4" && epoch == 0;
      EXPECT_EQ(momentum_at(run.schedule, epoch, run.optimizer.momentum), without ? 0 : 0.9) << epoch;
    }
    // Bars of communication and computation; full precision unless told otherwise.
    EXPECT_FALSE(run.exchange.overlap);
    EXPECT_EQ(run.exchange.collective, Collective::reduce_broadcast);
    EXPECT_TRUE(run.exchange.policy.codec.is_none());
    const double millions = 1e-6 * static_cast<double>(network_of(run).parameters());
    EXPECT_GE(millions, published.millions);
    EXPECT_LT(millions, published.millions + 1);
  }
}

TEST(StudyRecipes, BatchNormalisationIsNotDecayedInTheBottleneckNetworks) {
  for (const char* name : {"resnet50", "resnet152"})
    EXPECT_EQ(load(name).optimizer.no_decay, std::vector<std::string>{"norm"});
}

TEST(StudyRecipes, CropsAreAsPublished) {
  const auto check_side_ratio = [](const std::string& name, double least, double most, std::int64_t side) {
    SCOPED_TRACE(name);
    const RunConfig run = load(name);
    const AugmentOptions& a = run.data.augment;
    EXPECT_EQ(a.crop.kind, CropOptions::Kind::side_ratio);
    EXPECT_EQ(a.crop.ratio.min, least);
    EXPECT_EQ(a.crop.ratio.max, most);
    EXPECT_TRUE(a.mirror);
    // Evaluation is not documented: the centre, at the largest side ratio of training.
    EXPECT_EQ(run.data.evaluate.side_ratio, most);
    EXPECT_EQ(run.data.evaluate.resize, 0);
    EXPECT_EQ(network_of(run).input_shape(), (Shape{side, side, 3}));
  };
  check_side_ratio("alexnet", 0.887, 0.887, 227);
  check_side_ratio("vgg19", 0.4375, 0.875, 224);
  check_side_ratio("resnet50", 0.467, 0.875, 224);
  check_side_ratio("resnet152", 0.467, 0.875, 224);
  const RunConfig cifar = load("resnet110");  // 32 x 32 of 40 x 40
  EXPECT_EQ(cifar.data.augment.pad, 4);
  EXPECT_TRUE(cifar.data.augment.mirror);
  EXPECT_TRUE(cifar.data.evaluate.automatic());  // the whole image, which has the network's size
  const RunConfig inception = load("bn_inception");
  EXPECT_EQ(inception.data.augment.crop.kind, CropOptions::Kind::random_resized);
  EXPECT_EQ(inception.data.evaluate.side_ratio, 0.875);
}

TEST(StudyRecipes, AlexNetHasDropoutAndLocalResponseNormalisation) {
  const NetworkSpec alexnet = network_of(load("alexnet"));
  std::map<std::string, std::map<std::string, double>> found;
  for (const Node& node : alexnet.graph().nodes) {
    const std::string kind = node.kind;
    if (kind != "dropout" && kind != "lrn") continue;
    config::Writer writer;
    node.layer->fields(writer);
    const config::Value options = writer.take();
    for (const config::Value::Entry& option : options.entries)
      found[node.name][option.key] = std::stod(option.value.scalar);
  }
  // After the first two and before the last two activations (Krizhevsky, Sutskever, Hinton 2012).
  const std::map<std::string, double> half = {{"probability", 0.5}};
  const std::map<std::string, double> lrn = {{"size", 5}, {"alpha", 1e-4}, {"beta", 0.75}, {"k", 1}};
  EXPECT_EQ(found, (decltype(found){{"norm1", lrn}, {"norm2", lrn}, {"drop6", half}, {"drop7", half}}));
  std::map<std::string, Shape> shapes;
  for (const TensorInfo& t : alexnet.tensors()) shapes[t.name] = t.shape;
  EXPECT_EQ(shapes["conv2.weight"], (Shape{256, 96, 5, 5}));  // one tower, ungrouped
}

TEST(StudyRecipes, NetworksAreTheStudys) {
  const auto stride_of = [](const std::vector<LayerInfo>& layers, const std::string& layer) {
    for (const LayerInfo& l : layers)
      if (l.name == layer) return 56 / l.shape[0];
    return std::int64_t{0};
  };
  // ResNet-50 halves the image in the 1x1 convolution of a block, not in the 3x3 after it.
  const NetworkSpec resnet50 = network_of(load("resnet50"));
  EXPECT_EQ(stride_of(resnet50.layers(), "layer2.0.conv1"), 2);
  EXPECT_EQ(
      stride_of(network_of(load("resnet50", {"network.parameters.stride_in=3"})).layers(), "layer2.0.conv1"),
      1);
  // Where ResNet-152 halves it is not documented: in the 3x3 convolution, as torchvision does.
  const NetworkSpec resnet152 = network_of(load("resnet152"));
  EXPECT_EQ(stride_of(resnet152.layers(), "layer2.0.conv1"), 1);
  EXPECT_EQ(stride_of(resnet152.layers(), "layer2.0.conv2"), 2);
  const RunConfig speech = load("lstm_an4");
  const NetworkSpec lstm = network_of(speech);
  EXPECT_EQ(lstm.input_shape(), (Shape{20, 33 * 11}));  // 33 features of 11 frames, truncated
  EXPECT_EQ(lstm.classes(), 132);
  std::int64_t projected = 0;
  for (const TensorInfo& t : lstm.tensors())
    projected += t.shape == Shape{512, 1024} && t.kind == TensorKind::lstm;  // cell 1024, projection 512
  EXPECT_EQ(projected, 3);
}

TEST(StudyRecipes, OriginalOneBitSgdCodesEveryTensorByColumns) {
  for (const Recipe& published : recipes()) {
    const RunConfig run =
        load(published.name, {"exchange.codec={kind: onebit, bucket: column}", "exchange.min_elements=0"});
    for (const CodecSpec& codec : assign_codecs(run.exchange.policy, network_of(run).tensors()))
      EXPECT_FALSE(codec.is_none()) << published.name;
  }
}

}  // namespace
}  // namespace lpsgd
