// Frozen layers: what they compute, what is still trained, and what cannot be frozen.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/philox.h"
#include "nn/graph.h"
#include "nn/network.h"
#include "nn/plan.h"
#include "tests/nn/frozen_network.h"
#include "tests/nn/random_samples.h"

namespace lpsgd {
namespace {

using Names = std::vector<std::string>;

const std::string plain =
    "input: [8, 8, 4]\nclasses: 5\nlayers:\n  - {conv: c1, filters: 16, kernel: 3}\n  - {tanh: t1}\n"
    "  - {max_pool: p, kernel: 2}\n  - {conv: c2, filters: 8, kernel: 3}\n  - {group_norm: g2, groups: 2}\n"
    "  - {tanh: t2}\n  - flatten\n  - {dense: f1, units: 6}\n  - {dense: f2, units: 5}\n";

const std::string transformer =
    "input: [8, 8, 4]\nclasses: 5\nlayers:\n  - {conv: c1, filters: 18, kernel: 4, stride: 4}\n  - "
    "to_sequence\n"
    "  - {class_token: t1}\n  - {position: p1, frames: 5}\n  - {layer_norm: n1}\n  - {dense: d1, units: 54}\n"
    "  - {attention: a1, heads: 3}\n  - {dense: e1, units: 18}\n  - {add: s1, input: [e1, p1]}\n"
    "  - {layer_norm: n2}\n  - {attention: a2, heads: 2, input: [n2, n2, n2]}\n  - select_frame\n"
    "  - {dense: f1, units: 5}\n";

struct Model {
  Model(const std::string& text, const Names& frozen, const NetworkOptions& options)
      : spec(frozen_spec(text, frozen)), network(spec, options) {
    draw_samples(spec, options.batch, inputs, labels);
    PhiloxSequence draw(4, RandomUse::dataset, 1);
    for (const NamedBuffer& b : network.buffers())  // not those of a new network
      for (float& value : b.values) value += 0.5f * draw.uniform();
  }
  double loss() {
    network.forward_train({.inputs = inputs, .labels = labels}, 0);
    const BatchMetrics m = network.take_metrics();
    return m.loss / static_cast<double>(m.samples);
  }
  std::vector<float> scores() const { return {network.logits().begin(), network.logits().end()}; }

  NetworkSpec spec;
  Network network;
  std::vector<float> inputs;
  std::vector<std::int32_t> labels;
};

const TensorInfo& tensor(const std::vector<TensorInfo>& tensors, const std::string& name) {
  return *std::ranges::find(tensors, name, &TensorInfo::name);
}

std::vector<float> values(std::span<const float> arena, const TensorInfo& t) {
  const auto begin = arena.begin() + t.offset;
  return {begin, begin + t.elements};
}

TEST(Freeze, TrainedTensorsHaveTheGradientsOfTheWholeNetwork) {
  const std::vector<std::pair<std::string, Names>> cases{{plain, {"c1"}},
                                                         {plain, {"c?"}},
                                                         {plain, {"c1", "c2", "g2", "f1"}},
                                                         {transformer, {"{c,t,p}1"}},
                                                         {transformer, {"{c,t,p,n,d}1"}},
                                                         {transformer, {"{c,t,p,n,d,a,e}1", "n2", "a2"}}};
  for (const auto& [text, frozen] : cases) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(frozen, ", ")));
    Model whole(text, {}, {.batch = 6}), part(text, frozen, {.batch = 6});
    EXPECT_EQ(part.loss(), whole.loss());  // the same initial weights
    whole.network.backward({});
    std::vector<std::size_t> announced;
    part.network.backward([&](std::size_t t) { announced.push_back(t); });
    EXPECT_EQ(announced, part.network.announce_order());
    EXPECT_EQ(announced.size(), part.network.tensors().size());
    for (const TensorInfo& t : part.network.tensors())
      EXPECT_EQ(values(part.network.gradients(), t),
                values(whole.network.gradients(), tensor(whole.network.tensors(), t.name)))
          << t.name;
    const TensorArena rest = part.network.frozen();
    EXPECT_EQ(rest.tensors->size() + part.network.tensors().size(), whole.network.tensors().size());
    for (const TensorInfo& t : *rest.tensors)
      EXPECT_EQ(values(rest.values, t),
                values(whole.network.parameters(), tensor(whole.network.tensors(), t.name)))
          << t.name;
  }
}

TEST(Freeze, GradientsAreTheLosssDerivatives) {
  Model model(frozen_network, frozen_layers, {.batch = 5, .threads = 2});
  model.loss();
  model.network.backward({});
  const std::vector<float> gradients(model.network.gradients().begin(), model.network.gradients().end());
  const std::vector<float> start(model.network.parameters().begin(), model.network.parameters().end());
  ASSERT_EQ(model.network.tensors().size(), 7u);
  for (const TensorInfo& t : model.network.tensors()) {
    double norm = 0;
    for (const float g : values(gradients, t)) norm += static_cast<double>(g) * static_cast<double>(g);
    norm = std::sqrt(norm);
    ASSERT_GT(norm, 1e-3) << t.name;
    const auto loss_at = [&](double distance) {  // along the gradient
      for (std::int64_t i = t.offset; i < t.offset + t.elements; ++i) {
        const auto k = static_cast<std::size_t>(i);
        model.network.parameters()[k] =
            start[k] + static_cast<float>(distance * static_cast<double>(gradients[k]) / norm);
      }
      return model.loss();
    };
    EXPECT_NEAR((loss_at(0.01) - loss_at(-0.01)) / 0.02, norm, 0.01 * norm) << t.name;
    std::ranges::copy(start, model.network.parameters().begin());
  }
}

TEST(Freeze, FrozenLayersComputeAsInEvaluation) {
  for (const Compute compute : {Compute::fp32, Compute::bf16}) {
    if (unsupported(compute)) continue;
    Model model(frozen_network, {"{c,b}1", "{c,b}2", "d1", "side", "c3", "b3"},
                {.batch = 5, .compute = compute});
    std::vector<std::vector<float>> before;
    for (const NamedBuffer& b : model.network.buffers())
      before.emplace_back(b.values.begin(), b.values.end());
    model.loss();
    const std::vector<float> trained = model.scores();
    model.network.backward({});
    for (std::size_t b = 0; b < before.size(); ++b)
      EXPECT_TRUE(std::ranges::equal(before[b], model.network.buffers()[b].values));
    model.network.forward_eval({.inputs = model.inputs, .labels = model.labels}, 5);
    EXPECT_EQ(model.scores(), trained);
  }
  Model part(frozen_network, frozen_layers, {.batch = 5});  // b3 is trained
  part.loss();
  const std::vector<float> trained = part.scores();
  part.network.forward_eval({.inputs = part.inputs, .labels = part.labels}, 5);
  EXPECT_NE(part.scores(), trained);
}

TEST(Freeze, AFrozenLstmHasAStateOfItsOwnInTraining) {
  const std::string text =
      "input: [4]\nclasses: 6\nlayers:\n  - {embedding: e, vocabulary: 6, dimension: 5}\n"
      "  - {lstm: l, cell: 8}\n  - {dense: d, units: 6}\n";
  const NetworkSpec spec = frozen_spec(text, {"e", "l"});
  const auto scores = [&](bool evaluates) {
    Network network(spec, {.batch = 2});
    const std::vector<float> inputs{0, 1, 2, 3, 5, 4, 3, 2};
    const std::vector<std::int32_t> labels(8, 1), continues{1, 1};
    Samples samples{.inputs = inputs, .labels = labels};
    network.forward_train(samples, 0);
    network.backward({});
    if (evaluates) {
      const std::vector<float> other{5, 5, 5, 5, 5, 5, 5, 5};
      network.forward_eval({.inputs = other, .labels = labels}, 2);
    }
    samples.continues = continues;
    network.forward_train(samples, 1);
    return std::vector<float>(network.logits().begin(), network.logits().end());
  };
  EXPECT_EQ(scores(true), scores(false));
}

TEST(Freeze, ForwardKeepsNothingOfFrozenLayers) {
  const auto bytes = [](int frozen, int layers) {
    std::string text = "input: [8, 8, 16]\nclasses: 16\nlayers:\n";
    Names names;
    for (int i = 0; i < layers; ++i) {
      text += fmt::format("  - {{conv: c{}, filters: 16, kernel: 3, pad: 1}}\n  - {{tanh: t{}}}\n", i, i);
      if (i < frozen) names.push_back(fmt::format("c{}", i));
    }
    Graph graph = read_graph(config::parse_text(text + "  - average_pool\n  - flatten\n", "net.yaml"));
    freeze(graph, names);
    return make_plan(graph, true).arena;
  };
  EXPECT_LT(bytes(0, 4), bytes(0, 8));
  EXPECT_LE(bytes(4, 8), bytes(0, 4));
  EXPECT_LT(bytes(7, 8), bytes(4, 8));
}

TEST(Freeze, SpecsCountWhatIsTrained) {
  const NetworkSpec whole = frozen_spec(plain, {}), part = frozen_spec(plain, {"c1", "t1"});
  EXPECT_EQ(part.parameters() + part.frozen_parameters(), whole.parameters());
  EXPECT_EQ(part.frozen_parameters(), 16 * 4 * 9 + 16);
  EXPECT_EQ(part.tensors().front().name, "c2.weight");
  EXPECT_EQ(part.tensors().front().offset, 0);
  EXPECT_EQ(part.flops(), whole.flops());
  for (const LayerInfo& layer : part.layers())
    EXPECT_EQ(layer.frozen, layer.name.ends_with("1") && layer.name != "f1");
  EXPECT_EQ(part.layers()[0].parameters, part.frozen_parameters());
}

/// Layers that are never trained keep their tensors where others are frozen.
TEST(Freeze, FixedPositionsStayAsTheyAre) {
  const std::string text =
      "input: [4]\nclasses: 6\nlayers:\n  - {embedding: e, vocabulary: 6, dimension: 6}\n"
      "  - {position: p, frames: 5, trained: false}\n  - {dense: d, units: 7}\n  - {dense: f, units: 6}\n";
  for (const Names& frozen : {Names{}, Names{"e"}, Names{"e", "p"}, Names{"e", "d"}}) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(frozen, ", ")));
    const NetworkSpec spec = frozen_spec(text, frozen);
    Network network(spec, {.batch = 2});
    const TensorArena arena = network.frozen();
    const TensorInfo& positions = tensor(*arena.tensors, "p.weight");
    for (std::size_t t = 0; t < 5; ++t)
      for (std::size_t c = 0; c < 6; ++c) {
        const double angle = static_cast<double>(t) / std::pow(10000.0, static_cast<double>(c / 2) / 3.0);
        EXPECT_NEAR(static_cast<double>(arena.of(positions)[6 * t + c]),
                    c % 2 == 0 ? std::sin(angle) : std::cos(angle), 1e-7);
      }
    const std::size_t trained = frozen.empty() ? 5 : frozen.size() == 1 || frozen[1] == "p" ? 4 : 2;
    EXPECT_EQ(spec.tensors().size(), trained);
    EXPECT_EQ(network.announce_order().size(), trained);
  }
}

TEST(Freeze, WhatCannotBeFrozenIsNamed) {
  const auto error_of = [](const Names& frozen, const std::string& text = frozen_network) -> std::string {
    try {
      frozen_spec(text, frozen);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of({"c1", "c7"}), "'c7' is the name of no layer, did you mean 'c1'?");
  EXPECT_EQ(error_of({"b1.weight"}), "'b1.weight' is one tensor: layers are frozen as a whole, here 'b1'");
  EXPECT_EQ(error_of({"c1", "c2"}), "'c2' cannot be frozen, because 'b1' in front of it is trained");
  EXPECT_EQ(error_of({"f"}), "'f' cannot be frozen, because 'b3' in front of it is trained");
  EXPECT_EQ(error_of({"*"}), "no layer is left to train");
  EXPECT_EQ(error_of({"d1"}), "'d1' cannot be frozen, because 'b1' in front of it is trained");
  const std::string fixed =
      "input: [4]\nclasses: 6\nlayers:\n  - {embedding: e, vocabulary: 6, dimension: 5}\n"
      "  - {position: p, frames: 5, trained: false}\n  - {dense: f, units: 6}\n";
  EXPECT_EQ(error_of({"p"}, fixed), "no error");  // it is already
  const std::string shared =
      "input: [4]\nclasses: 6\nlayers:\n  - {embedding: e, vocabulary: 6, dimension: 5}\n"
      "  - {dense: d, units: 5}\n  - {dense: f, units: 6, weight_of: e}\n";
  EXPECT_EQ(error_of({"e"}, shared), "'e' cannot be frozen, because it shares its weight with another layer");
  const std::string borrowed =
      "input: [4]\nclasses: 6\nlayers:\n  - {embedding: a, vocabulary: 6, dimension: 5}\n"
      "  - {embedding: e, vocabulary: 6, dimension: 5, input: in}\n  - {dense: d, units: 6, input: a, "
      "weight_of: e}\n"
      "  - {dense: f, units: 6, input: e}\n  - {add: s, input: [d, f]}\n";
  EXPECT_EQ(error_of({"a"}, borrowed), "no error");
  EXPECT_EQ(error_of({"a", "d"}, borrowed),
            "'d' cannot be frozen, because it shares its weight with another layer");
}

}  // namespace
}  // namespace lpsgd
