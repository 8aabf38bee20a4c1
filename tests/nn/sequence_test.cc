// Sequences: an open number of frames, batches shorter than planned, states that are carried from pass to
// pass, and losses over the frames of several ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "core/error.h"
#include "tests/nn/layer_fixture.h"

namespace lpsgd {
namespace {

std::string recurrent(const std::string& frames) {
  return "input: [" + frames +
         ", 5]\nclasses: 3\nlayers: [{lstm: a, cell: 9, projection: 4}, {lstm: b, cell: 6}, {dense: fc, "
         "units: 3}]";
}

std::vector<float> copy_of(std::span<const float> values) {
  return {values.begin(), values.end()};
}

void copy_weights(LayerFixture& from, LayerFixture& to) {
  std::ranges::copy(from.network.parameters(), to.network.parameters().begin());
}

/// Frames [first, last) of each sample of `values` (batch, frames, width).
template <class V>
std::vector<V> cut(const std::vector<V>& values, std::int64_t batch, std::int64_t first, std::int64_t last) {
  const auto sample = static_cast<std::ptrdiff_t>(values.size()) / batch;
  std::vector<V> out;
  for (std::int64_t n = 0; n < batch; ++n)
    out.insert(out.end(), values.begin() + n * sample + first, values.begin() + n * sample + last);
  return out;
}

using Values = std::map<std::string, std::vector<float>>;

Values carried(Network& network) {
  Values out;
  for (const NamedBuffer& b : network.carried_state()) out[b.name] = copy_of(b.values);
  return out;
}

void set_carried(Network& network, const Values& values) {
  for (const NamedBuffer& b : network.carried_state()) std::ranges::copy(values.at(b.name), b.values.begin());
}

/// Scores of three sequences of 12 frames in pieces of 4 against those of one pass.
void compare_pieces(Compute compute, bool training, double bound) {
  LayerFixture whole(recurrent("12"), 3), piece(recurrent("4"), 3);
  const NetworkOptions options{.batch = 3, .compute = compute};
  Network all(whole.spec, options), part(piece.spec, options);
  for (Network* n : {&all, &part}) std::ranges::copy(whole.network.parameters(), n->parameters().begin());
  const auto run = [&](Network& network, const Samples& samples) {
    training ? network.forward_train(samples, 0) : network.forward_eval(samples, 3);
    return copy_of(network.logits());
  };
  const std::vector<float> scores = run(all, whole.samples());
  for (std::int64_t i = 0; i < 3; ++i) {
    const std::vector<float> inputs = cut(whole.inputs, 3, 20 * i, 20 * i + 20);
    const std::vector<std::int32_t> labels = cut(whole.labels, 3, 4 * i, 4 * i + 4), continues(3, i > 0);
    const std::vector<float> got = run(part, {.inputs = inputs, .labels = labels, .continues = continues});
    const std::vector<float> expected = cut(scores, 3, 12 * i, 12 * i + 12);
    for (std::size_t k = 0; k < got.size(); ++k) ASSERT_NEAR(got[k], expected[k], bound) << i << ", " << k;
  }
}

TEST(CarriedState, PiecesGiveTheScoresOfTheWhole) {
  for (const bool training : {true, false}) {
    compare_pieces(Compute::fp32, training, 1e-6);
    if (!unsupported(Compute::bf16)) compare_pieces(Compute::bf16, training, 1e-2);
  }
}

/// Whether a sequence continues does not touch its neighbours; one that ended early has left zeros.
TEST(CarriedState, EachSampleHasItsOwn) {
  LayerFixture f(recurrent("4"), 4);
  f.lengths = {4, 2, 4, 0};
  f.loss();
  const Values left = carried(f.network);
  ASSERT_EQ(left.size(), 4u);
  EXPECT_EQ(left.at("a.h").size(), 16u);
  EXPECT_EQ(left.at("a.c").size(), 36u);
  EXPECT_EQ(f.network.carried_state()[0].shape, (std::vector<std::int64_t>{4, 4}));
  for (const auto& [name, values] : left) {
    const std::size_t width = values.size() / 4;
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_EQ(values[i] != 0, i / width == 0 || i / width == 2) << name << " " << i;
  }
  f.lengths.clear();
  f.loss();
  const std::vector<float> fresh = copy_of(f.network.logits());
  set_carried(f.network, left);
  f.continues = {1, 1, 0, 1};
  f.loss();
  const std::span<const float> mixed = f.network.logits();
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    if (i / 12 == 0)
      EXPECT_NE(mixed[i], fresh[i]) << i;
    else
      EXPECT_EQ(mixed[i], fresh[i]) << i;
  }
}

TEST(CarriedState, EvaluationHasItsOwn) {
  LayerFixture f(recurrent("4"), 2);
  f.loss();
  const Values left = carried(f.network);
  f.continues = {1, 1};
  f.network.forward_eval(f.samples(), 2);
  const std::vector<float> first = copy_of(f.network.logits());
  f.network.forward_eval(f.samples(), 2);
  const std::vector<float> second = copy_of(f.network.logits());
  EXPECT_NE(first, second);
  EXPECT_EQ(carried(f.network), left);
  f.continues = {0, 0};
  f.network.forward_eval(f.samples(), 2);
  EXPECT_EQ(copy_of(f.network.logits()), first);  // nothing was carried to the first
}

/// From a state that stays the same, so that no gradient flows into it.
TEST(CarriedState, GradientsOfAPieceAreDifferences) {
  LayerFixture f(recurrent("4"), 3);
  f.loss();
  const Values state = carried(f.network);
  f.continues = {1, 0, 1};
  f.lengths = {4, 3, 2};
  const auto loss = [&] {
    set_carried(f.network, state);
    return f.loss();
  };
  loss();
  f.network.backward({});
  const std::vector<float> gradients = copy_of(f.network.gradients());
  for (const TensorInfo& t : f.network.tensors()) {
    const std::span<float> weights = f.network.parameters().subspan(static_cast<std::size_t>(t.offset),
                                                                    static_cast<std::size_t>(t.elements));
    double norm = 0;
    for (std::size_t i = 0; i < weights.size(); ++i)
      norm += std::pow(static_cast<double>(gradients[static_cast<std::size_t>(t.offset) + i]), 2);
    norm = std::sqrt(norm);
    double value[2];
    const std::vector<float> before = copy_of(weights);
    constexpr double step = 5e-3;
    for (const int side : {0, 1}) {
      for (std::size_t i = 0; i < weights.size(); ++i)
        weights[i] = static_cast<float>(
            static_cast<double>(before[i]) +
            (side ? step : -step) * static_cast<double>(gradients[static_cast<std::size_t>(t.offset) + i]) /
                norm);
      value[side] = loss();
    }
    std::ranges::copy(before, weights.begin());
    EXPECT_NEAR((value[1] - value[0]) / (2 * step), norm, 2e-3 * norm + 1e-4) << t.name;
  }
}

/// A network that is planned for more frames than a batch has.
TEST(Sequences, ShortBatchesAreThoseOfAShorterNetwork) {
  LayerFixture planned(recurrent("700"), 2), exact(recurrent("130"), 2);
  copy_weights(planned, exact);
  exact.lengths = {130, 57};
  planned.loss();  // leaves numbers behind the ends of the next
  planned.network.backward({});
  planned.lengths = exact.lengths;
  planned.inputs = std::vector<float>(planned.inputs.size(), std::nanf(""));
  planned.labels = std::vector<std::int32_t>(planned.labels.size(), 99);
  for (std::size_t n = 0; n < 2; ++n) {
    std::copy_n(exact.inputs.data() + n * 650, 650, planned.inputs.data() + n * 3500);
    std::copy_n(exact.labels.data() + n * 130, 130, planned.labels.data() + n * 700);
  }
  EXPECT_NEAR(planned.loss(), exact.loss(), 1e-6);
  for (const auto& [name, values] : carried(planned.network))
    EXPECT_EQ(values, std::vector<float>(values.size())) << name << " of a sequence that ended";
  for (LayerFixture* f : {&planned, &exact}) f->network.backward({});
  for (std::size_t i = 0; i < exact.network.gradients().size(); ++i)
    ASSERT_NEAR(planned.network.gradients()[i], exact.network.gradients()[i], 1e-6) << i;
}

TEST(Sequences, IdleSamplesHaveNoGradient) {
  LayerFixture f(recurrent("4"), 2);
  f.lengths = {0, 0};
  f.network.forward_train(f.samples(), 0);
  EXPECT_EQ(f.network.take_metrics().samples, 0);
  f.network.backward({});
  for (const float g : f.network.gradients()) ASSERT_EQ(g, 0.0f);
  f.lengths = {0, -1};
  EXPECT_THROW(f.loss(), Error);
  f.lengths = {5, 1};
  EXPECT_THROW(f.loss(), Error);
  f.lengths.clear();
  f.continues = {1};
  EXPECT_THROW(f.loss(), Error);
  LayerFixture flat("input: [5]\nclasses: 3\nlayers: [{dense: fc, units: 3}]", 1);
  flat.lengths = {3};
  EXPECT_THROW(flat.loss(), Error);
}

/// Garbage behind the end of a sequence that a dense layer reads.
TEST(Sequences, EveryFirstLayerIgnoresWhatIsBehindTheEnd) {
  LayerFixture f("input: [4, 5]\nclasses: 3\nlayers: [{dense: d, units: 6}, tanh, {dense: fc, units: 3}]", 2);
  f.lengths = {2, 4};
  const double loss = f.loss();
  f.network.backward({});
  const std::vector<float> gradients = copy_of(f.network.gradients());
  std::fill_n(f.inputs.begin() + 10, 10, std::nanf(""));
  EXPECT_EQ(f.loss(), loss);
  f.network.backward({});
  EXPECT_EQ(copy_of(f.network.gradients()), gradients);
}

/// The mean over two ranks with unequal numbers of frames is the gradient of one rank with both batches.
TEST(Sequences, RanksWithUnequalFramesHaveTheMeanOfAllFrames) {
  LayerFixture one(recurrent("6"), 4), two[2] = {{recurrent("6"), 2}, {recurrent("6"), 2}};
  one.lengths = {6, 5, 1, 2};
  one.loss();
  one.network.backward({});
  std::vector<double> mean(one.network.gradients().size());
  for (std::size_t r = 0; r < 2; ++r) {
    LayerFixture& rank = two[r];
    copy_weights(one, rank);
    rank.inputs.assign(one.inputs.begin() + static_cast<std::ptrdiff_t>(60 * r),
                       one.inputs.begin() + static_cast<std::ptrdiff_t>(60 * r + 60));
    rank.labels.assign(one.labels.begin() + static_cast<std::ptrdiff_t>(12 * r),
                       one.labels.begin() + static_cast<std::ptrdiff_t>(12 * r + 12));
    rank.lengths.assign(one.lengths.begin() + static_cast<std::ptrdiff_t>(2 * r),
                        one.lengths.begin() + static_cast<std::ptrdiff_t>(2 * r + 2));
    rank.loss_divisor = 14.0 / 2;
    rank.loss();
    rank.network.backward({});
    for (std::size_t i = 0; i < mean.size(); ++i)
      mean[i] += static_cast<double>(rank.network.gradients()[i]) / 2;
  }
  double largest = 0;
  for (std::size_t i = 0; i < mean.size(); ++i) {
    EXPECT_NEAR(mean[i], static_cast<double>(one.network.gradients()[i]), 3e-7) << i;
    largest = std::max(largest, std::abs(mean[i]));
  }
  EXPECT_GT(largest, 0.01);
}

TEST(OpenFrames, AreTheRunsToChoose) {
  const auto tree = config::parse_text(recurrent("any"), "net.yaml");
  const NetworkSpec one(tree), many(tree, 461);
  EXPECT_TRUE(many.has_open_frames());
  EXPECT_TRUE(many.is_sequence());
  EXPECT_EQ(one.input_shape(), (std::vector<std::int64_t>{1, 5}));
  EXPECT_EQ(many.input_shape(), (std::vector<std::int64_t>{461, 5}));
  EXPECT_EQ(many.parameters(), one.parameters());
  EXPECT_EQ(many.flops(), 461 * one.flops());
  const NetworkSpec words(
      config::parse_text("input: [any]\nclasses: 3\nlayers: [{embedding: e, vocabulary: 6, dimension: 3}]",
                         "n"),
      20);
  EXPECT_EQ(words.input_shape(), (std::vector<std::int64_t>{20}));
  EXPECT_FALSE(NetworkSpec(config::parse_text(recurrent("7"), "net.yaml"), 7).has_open_frames());

  const auto error_of = [](const std::string& text, std::optional<std::int64_t> frames) -> std::string {
    try {
      NetworkSpec(config::parse_text(text, "net.yaml"), frames);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_EQ(
      error_of(recurrent("7"), 8),
      "net.yaml:1:8: input: sequences have 8 frames, but the network is made for 7; write 'any' to leave "
      "the number to the run");
  EXPECT_EQ(error_of("input: [any]\nclasses: 3\nlayers: [{dense: d, units: 3}]", 5),
            "net.yaml:1:8: input: 'any' is for sequences whose every frame has class scores");
  EXPECT_EQ(error_of("input: [any, 2]\nclasses: 3\nlayers: [flatten, {dense: d, units: 3}]", 5),
            "net.yaml:1:8: input: 'any' is for sequences whose every frame has class scores");
  EXPECT_EQ(error_of("input: [4, any]\nclasses: 4\nlayers: [relu]", {}),
            "net.yaml:1:12: input[1]: expected an integer from 1 to 1048576, got 'any'");
  EXPECT_EQ(error_of(recurrent("any"), std::int64_t{1} << 40), "net.yaml:1:8: input: is too large");
}

}  // namespace
}  // namespace lpsgd
