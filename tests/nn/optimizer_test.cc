// The optimizer against torch.optim.SGD's rules written out in double, and the schedule's values.
#include "nn/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/philox.h"
#include "nn/schedule.h"

namespace lpsgd {
namespace {

std::vector<TensorInfo> two_tensors() {
  TensorInfo a{"a.weight", TensorKind::conv, {37}, 37, 0};
  TensorInfo b{"b.weight", TensorKind::norm, {5}, 5, 48};
  return {a, b};
}

/// Steps the optimizer and a slow reference side by side; returns the largest difference. Momentum is the
/// options' in the first steps, and then `later`.
double difference(const OptimizerOptions& options, int steps, std::optional<double> later = {}) {
  const std::vector<TensorInfo> tensors = two_tensors();
  constexpr std::size_t arena = 64;
  Optimizer optimizer(options, tensors, arena);
  std::vector<float> w(arena), g(arena);
  std::vector<double> rw(arena), rv(arena), second(arena);
  PhiloxSequence draw(3, RandomUse::dataset, 0);
  for (const TensorInfo& t : tensors)
    for (std::int64_t i = t.offset; i < t.offset + t.elements; ++i) {
      w[static_cast<std::size_t>(i)] = draw.uniform() - 0.5f;
      rw[static_cast<std::size_t>(i)] = static_cast<double>(w[static_cast<std::size_t>(i)]);
    }
  double worst = 0;
  for (int step = 0; step < steps; ++step) {
    const double lr = 0.1 / (step + 1);
    double squares = 0;
    for (const TensorInfo& t : tensors)
      for (std::int64_t i = t.offset; i < t.offset + t.elements; ++i) {
        g[static_cast<std::size_t>(i)] = draw.uniform() - 0.5f;
        squares += std::pow(static_cast<double>(g[static_cast<std::size_t>(i)]), 2);
      }
    const double norm = std::sqrt(squares);
    const double mu = later && step >= 2 ? *later : options.momentum;
    const double gain = options.momentum_unit_gain ? 1 - mu : 1;
    const double scale = options.clip_norm > 0 ? std::min(1.0, options.clip_norm / (norm + 1e-6)) : 1.0;
    for (const TensorInfo& t : tensors) {
      const auto is_one_of = [&](const std::vector<std::string>& kinds) {
        return std::find(kinds.begin(), kinds.end(), to_text(t.kind)) != kinds.end();
      };
      const double decay = is_one_of(options.no_decay) ? 0 : options.weight_decay;
      double of_w = 0, of_g = 0;
      for (std::int64_t k = t.offset; k < t.offset + t.elements; ++k) {
        of_w += std::pow(rw[static_cast<std::size_t>(k)], 2);
        of_g += std::pow(static_cast<double>(g[static_cast<std::size_t>(k)]) * scale, 2);
      }
      double ratio = 1;
      if (options.kind == OptimizerKind::lars && !is_one_of(options.lars_exclude))
        ratio = options.trust * std::sqrt(of_w) / (std::sqrt(of_g) + decay * std::sqrt(of_w));
      for (std::int64_t k = t.offset; k < t.offset + t.elements; ++k) {
        const std::size_t i = static_cast<std::size_t>(k);
        if (options.is_adam()) {
          const bool decoupled = options.kind == OptimizerKind::adamw;
          if (decoupled) rw[i] *= 1 - lr * decay;
          const double d = static_cast<double>(g[i]) * scale + (decoupled ? 0 : decay * rw[i]);
          rv[i] = options.beta1 * rv[i] + (1 - options.beta1) * d;
          second[i] = options.beta2 * second[i] + (1 - options.beta2) * d * d;
          const double root = std::sqrt(second[i] / (1 - std::pow(options.beta2, step + 1)));
          rw[i] -= lr * rv[i] / (1 - std::pow(options.beta1, step + 1)) / (root + options.eps);
          continue;
        }
        const double d = ratio * (static_cast<double>(g[i]) * scale + decay * rw[i]);
        rv[i] = mu * rv[i] + gain * d;
        rw[i] -= lr * (options.nesterov ? gain * d + mu * rv[i] : rv[i]);
      }
    }
    if (later && step == 2) optimizer.set_momentum(*later);
    optimizer.set_rate(lr, step);
    optimizer.step(w, g);
    for (std::size_t i = 0; i < arena; ++i)
      worst = std::max(worst, std::abs(static_cast<double>(w[i]) - rw[i]));
  }
  return worst;
}

TEST(Optimizer, FollowsPytorchsRules) {
  EXPECT_LT(difference({.momentum = 0}, 3), 1e-6);
  EXPECT_LT(difference({.momentum = 0.9}, 5), 1e-6);
  EXPECT_LT(difference({.momentum = 0.9, .weight_decay = 0.01}, 5), 1e-6);
  EXPECT_LT(difference({.momentum = 0.9, .nesterov = true, .weight_decay = 0.01}, 5), 1e-6);
  EXPECT_LT(difference({.momentum = 0.9, .weight_decay = 0.5, .no_decay = {"norm"}}, 5), 1e-6);
  EXPECT_LT(difference({.momentum = 0.9, .clip_norm = 0.5}, 5), 1e-6);
  EXPECT_LT(difference({.momentum = 0.9, .clip_norm = 1e6}, 5), 1e-6);
}

TEST(Optimizer, AdamFollowsPytorchsRules) {
  for (const OptimizerKind kind : {OptimizerKind::adam, OptimizerKind::adamw}) {
    EXPECT_LT(difference({.kind = kind}, 6), 2e-6);
    EXPECT_LT(difference({.kind = kind, .weight_decay = 0.5, .no_decay = {"norm"}}, 6), 2e-6);
    EXPECT_LT(difference({.kind = kind, .clip_norm = 0.5, .beta1 = 0.5, .beta2 = 0.9, .eps = 0.1}, 6), 2e-6);
  }
}

/// torch.optim.Adam and AdamW, lr 0.01, betas (0.9, 0.99), eps 1e-6, weight decay 0.1, in float64.
TEST(Optimizer, AdamHasPytorchsNumbers) {
  const auto trained = [](OptimizerKind kind) {
    Optimizer optimizer({.kind = kind, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6},
                        {{"a", TensorKind::dense, {4}, 4, 0}}, 16);
    std::vector<float> w(16), g(16);
    const std::vector<float> start{0.5f, -0.25f, 1.0f, 0.125f}, gradient{0.5f, -1.0f, 0.25f, 0.0f};
    std::copy(start.begin(), start.end(), w.begin());
    for (int step = 0; step < 5; ++step) {
      for (std::size_t i = 0; i < 4; ++i)
        g[i] = gradient[i] * static_cast<float>(step + 1) * (step % 2 ? 1.0f : -0.5f);
      optimizer.set_rate(0.01, step);
      optimizer.step(w, g);
    }
    w.resize(4);
    return w;
  };
  const auto expect = [](const std::vector<float>& got, const std::vector<double>& expected) {
    for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(got[i], expected[i], 1e-6) << i;
  };
  expect(trained(OptimizerKind::adam), {0.497003643, -0.248403651, 0.991923696, 0.075537336});
  expect(trained(OptimizerKind::adamw), {0.496371507, -0.247619023, 0.993876474, 0.124376249});
}

/// 1 - beta2 of a float32 beta2 would be 1e-4 times 1.0002.
TEST(Optimizer, AdamsSharesAddUpToOne) {
  Optimizer optimizer({.kind = OptimizerKind::adam, .beta1 = 0.9999, .beta2 = 0.9999},
                      {{"a", TensorKind::dense, {4}, 4, 0}}, 16);
  std::vector<float> w(16), g(16, 2.0f);
  optimizer.set_rate(0.01, 0);
  optimizer.step(w, g);
  EXPECT_NEAR(static_cast<double>(optimizer.momentum()[0]) / ((1 - 0.9999) * 2), 1, 1e-6);
  EXPECT_NEAR(static_cast<double>(optimizer.second_moment()[0]) / ((1 - 0.9999) * 4), 1, 1e-6);
}

TEST(Optimizer, LarsScalesEachTensorsUpdate) {
  const auto lars = [](OptimizerOptions options) {
    options.kind = OptimizerKind::lars;
    return options;
  };
  EXPECT_LT(difference(lars({.weight_decay = 0.01, .trust = 0.1}), 5), 1e-6);
  EXPECT_LT(difference(lars({.nesterov = true, .weight_decay = 0.5, .no_decay = {"norm"}, .trust = 1}), 5),
            1e-6);
  EXPECT_LT(difference(lars({.clip_norm = 0.1, .trust = 0.1, .lars_exclude = {}}), 5), 1e-6);
}

/// |w| = 5 and |g| = 2, so the ratio is 0.1 * 5 / 2; the kinds in lars_exclude have a ratio of 1.
TEST(Optimizer, LarsHasTheNumbersOfItsFormula) {
  Optimizer optimizer({.kind = OptimizerKind::lars, .momentum = 0, .trust = 0.1},
                      {{"a", TensorKind::dense, {2}, 2, 0}, {"b", TensorKind::norm, {2}, 2, 16}}, 32);
  std::vector<float> w(32), g(32);
  w[0] = w[16] = 3;
  w[1] = w[17] = 4;
  g[1] = g[17] = 2;
  optimizer.set_rate(0.5);
  optimizer.step(w, g);
  EXPECT_EQ(w[0], 3.0f);
  EXPECT_FLOAT_EQ(w[1], 4 - 0.5f * 0.25f * 2);
  EXPECT_FLOAT_EQ(w[17], 4 - 0.5f * 2);
}

TEST(Optimizer, LarsMovesWeightsThatAreZero) {
  Optimizer optimizer({.kind = OptimizerKind::lars, .momentum = 0}, two_tensors(), 64);
  std::vector<float> w(64), g(64, 1.0f);
  optimizer.set_rate(0.5);
  optimizer.step(w, g);
  EXPECT_EQ(w[0], -0.5f);
}

/// What noise adds to gradients of zero, in one step.
std::vector<float> noise_of(std::int64_t step, std::uint32_t seed, double decay, int rank = 0) {
  const TensorInfo tensor{"a", TensorKind::dense, {40001}, 40001, 0};
  Optimizer optimizer({.momentum = 0, .noise = 0.25, .noise_decay = decay}, {tensor}, 40016, {}, seed);
  std::vector<float> w(40016), g(40016);
  if (rank > 0) optimizer.set_noise_rank(rank);
  optimizer.set_rate(-1, step);
  optimizer.step(w, g);
  EXPECT_EQ(w[40001], 0.0f) << "padding";
  w.resize(40001);
  return w;
}

TEST(Optimizer, NoiseIsNormalAndFalls) {
  for (const std::int64_t step : {0, 99}) {
    const std::vector<float> noise = noise_of(step, 5, 0.5);
    const double expected = 0.25 * std::pow(static_cast<double>(step) + 1, -0.25);
    double sum = 0, squares = 0;
    std::int64_t beyond = 0;
    for (const float x : noise) {
      sum += static_cast<double>(x);
      squares += static_cast<double>(x) * static_cast<double>(x);
      beyond += std::abs(static_cast<double>(x)) > 2 * expected;
    }
    const double n = static_cast<double>(noise.size());
    EXPECT_NEAR(sum / n, 0, 4 * expected / std::sqrt(n));
    EXPECT_NEAR(std::sqrt(squares / n) / expected, 1, 0.02);
    EXPECT_NEAR(static_cast<double>(beyond) / n, 0.0455, 0.005);
  }
  EXPECT_EQ(noise_of(3, 5, 0.5), noise_of(3, 5, 0.5));
  EXPECT_NE(noise_of(3, 5, 0), noise_of(4, 5, 0));
  EXPECT_NE(noise_of(3, 5, 0), noise_of(3, 6, 0));
  EXPECT_NE(noise_of(3, 5, 0), noise_of(3, 5, 0, 1));
  EXPECT_NE(noise_of(3, 5, 0, 2), noise_of(3, 5, 0, 1));
}

TEST(Optimizer, UnitGainFollowsCntksRules) {
  EXPECT_LT(difference({.momentum = 0, .momentum_unit_gain = true}, 3), 1e-6);
  EXPECT_LT(difference({.momentum_unit_gain = true, .weight_decay = 0.5, .no_decay = {"norm"}}, 5), 1e-6);
  EXPECT_LT(difference({.nesterov = true, .momentum_unit_gain = true, .weight_decay = 0.01}, 5), 1e-6);
  EXPECT_LT(difference({.momentum_unit_gain = true, .clip_norm = 0.5}, 5), 1e-6);
}

TEST(Optimizer, MomentumMayChange) {
  for (const bool unit_gain : {false, true})
    for (const bool nesterov : {false, true})
      EXPECT_LT(difference({.momentum = 0, .nesterov = nesterov, .momentum_unit_gain = unit_gain}, 6, 0.9),
                1e-6);
}

/// Of a momentum that stays the same, unit gain is a rate 1 - mu times as large.
TEST(Optimizer, UnitGainIsAnotherRate) {
  const auto trained = [](bool unit_gain, double lr) {
    Optimizer optimizer({.momentum = 0.75, .momentum_unit_gain = unit_gain, .weight_decay = 0.1},
                        two_tensors(), 64);
    std::vector<float> w(64, 1.0f), g(64);
    optimizer.set_rate(lr);
    for (int step = 0; step < 10; ++step) {
      for (std::size_t i = 0; i < g.size(); ++i) g[i] = std::sin(static_cast<float>(i) + 10 * w[i]);
      optimizer.step(w, g);
    }
    return w;
  };
  EXPECT_EQ(trained(true, 0.5), trained(false, 0.125));  // powers of two, which round nothing
}

TEST(Optimizer, PaddingStaysZero) {
  Optimizer optimizer({.weight_decay = 0.1}, two_tensors(), 64);
  std::vector<float> w(64), g(64);
  for (const TensorInfo& t : two_tensors())
    for (std::int64_t i = 0; i < t.elements; ++i) w[static_cast<std::size_t>(t.offset + i)] = 1;
  EXPECT_THROW(optimizer.step(w, g), Error);
  optimizer.set_rate(0.5);
  optimizer.step(w, g);
  for (std::size_t i = 37; i < 48; ++i) EXPECT_EQ(w[i], 0.0f);
  for (std::size_t i = 53; i < 64; ++i) EXPECT_EQ(w[i], 0.0f);
  EXPECT_FLOAT_EQ(w[36], 1 - 0.5f * 0.1f);
}

template <class Options>
std::string error_of(const std::string& text) {
  try {
    Options options;
    config::read(config::parse_text(text, "a.yaml"), "x", options);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "no error";
}

TEST(Optimizer, ConfigurationIsChecked) {
  EXPECT_EQ(error_of<OptimizerOptions>("{kind: sgd, momentum: 0.9, no_decay: [norm, bias]}"), "no error");
  EXPECT_EQ(
      error_of<OptimizerOptions>("no_decay: [nrom]"),
      "a.yaml:1:12: x.no_decay: 'nrom' is not a kind of tensor, did you mean 'norm'?; allowed: conv, dense, "
      "norm, bias, lstm, embedding");
  EXPECT_EQ(error_of<OptimizerOptions>("momentum: 1.5"),
            "a.yaml:1:11: x.momentum: expected a number from 0 to 1, got '1.5'");
  EXPECT_EQ(error_of<OptimizerOptions>("kind: adagrad"),
            "a.yaml:1:7: x.kind: 'adagrad' is not known; allowed: sgd, lars, adam, adamw");
  OptimizerOptions o;
  config::read(config::parse_text("{no_decay: [bias], nesterov: true}", "a"), "", o);
  OptimizerOptions back;
  config::read(config::write(o), "", back);
  EXPECT_EQ(back.no_decay, std::vector<std::string>{"bias"});
  EXPECT_TRUE(back.nesterov);
}

ScheduleOptions schedule(const std::string& text) {
  ScheduleOptions o;
  config::read(config::parse_text(text, "a.yaml"), "schedule", o);
  return o;
}

TEST(Schedule, DecaysOnceEpochsAreDone) {
  const ScheduleOptions o = schedule("{lr: 0.1, decay: {80: 0.1, 120: 0.1}}");
  EXPECT_DOUBLE_EQ(learning_rate(o, 0, 10, 160), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(o, 799, 10, 160), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(o, 800, 10, 160), 0.01);
  EXPECT_DOUBLE_EQ(learning_rate(o, 1200, 10, 160), 0.001);
  const ScheduleOptions every = schedule("{lr: 1, decay: {every: 2, factor: 0.5}}");
  EXPECT_DOUBLE_EQ(learning_rate(every, 19, 10, 160), 1);
  EXPECT_DOUBLE_EQ(learning_rate(every, 20, 10, 160), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(every, 45, 10, 160), 0.25);
}

TEST(Schedule, ScalesTheRateWithTheBatchAndWarmsUpFromIt) {
  ScheduleOptions o =
      schedule("{lr: 0.1, lr_scaling: linear, lr_batch_size: 128, warmup_epochs: 2, decay: {4: 0.1}}");
  scale_rate(o, 1024);
  EXPECT_DOUBLE_EQ(learning_rate(o, 0, 10, 160), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(o, 10, 10, 160), 0.45);
  EXPECT_DOUBLE_EQ(learning_rate(o, 20, 10, 160), 0.8);
  EXPECT_DOUBLE_EQ(learning_rate(o, 40, 10, 160), 0.08);
  o.lr_scaling = RateScaling::sqrt;
  scale_rate(o, 512);
  EXPECT_DOUBLE_EQ(learning_rate(o, 20, 10, 160), 0.2);
  o.lr_scaling = RateScaling::none;
  scale_rate(o, 512);
  EXPECT_DOUBLE_EQ(learning_rate(o, 20, 10, 160), 0.1);
}

TEST(Schedule, WarmsUpStepByStep) {
  const ScheduleOptions o = schedule("{lr: 0.5, warmup_epochs: 2, warmup_from: 0.1}");
  EXPECT_DOUBLE_EQ(learning_rate(o, 0, 10, 160), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(o, 10, 10, 160), 0.3);
  EXPECT_DOUBLE_EQ(learning_rate(o, 20, 10, 160), 0.5);
}

TEST(Schedule, FallsLinearlyToTheLastEpoch) {
  const ScheduleOptions o = schedule("{lr: 0.5, warmup_epochs: 2, warmup_from: 0.1, decay: {linear: 0.1}}");
  const auto rate = [&](std::int64_t step) { return learning_rate(o, step, 10, 10); };
  EXPECT_DOUBLE_EQ(rate(0), 0.1);
  EXPECT_DOUBLE_EQ(rate(10), 0.3);
  EXPECT_DOUBLE_EQ(rate(20), 0.5);  // the warm-up's end
  EXPECT_DOUBLE_EQ(rate(21), 0.495);
  EXPECT_DOUBLE_EQ(rate(60), 0.3);
  EXPECT_DOUBLE_EQ(rate(99), 0.105);
  EXPECT_DOUBLE_EQ(rate(100), 0.1);  // of the next step, if there were one
  EXPECT_DOUBLE_EQ(rate(120), 0.1);
  const ScheduleOptions plain = schedule("{lr: 3, decay: {linear: 0}}");
  for (std::int64_t step = 0; step < 35; ++step)
    EXPECT_DOUBLE_EQ(learning_rate(plain, step, 7, 5), 3 * (1 - static_cast<double>(step) / 35)) << step;
}

/// The rates are those of torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=80, eta_min=0.1).
TEST(Schedule, FallsAlongACosineToTheLastEpoch) {
  const ScheduleOptions o = schedule("{lr: 0.5, warmup_epochs: 2, warmup_from: 0.1, decay: {cosine: 0.1}}");
  const auto rate = [&](std::int64_t step) { return learning_rate(o, step, 10, 10); };
  EXPECT_DOUBLE_EQ(rate(10), 0.3);
  EXPECT_DOUBLE_EQ(rate(20), 0.5);  // the warm-up's end
  EXPECT_NEAR(rate(21), 0.4998458072481446, 1e-12);
  EXPECT_NEAR(rate(40), 0.44142135623730956, 1e-12);
  EXPECT_NEAR(rate(60), 0.3, 1e-12);
  EXPECT_NEAR(rate(99), 0.1001541927518554, 1e-12);
  EXPECT_DOUBLE_EQ(rate(100), 0.1);
  EXPECT_DOUBLE_EQ(rate(120), 0.1);
}

TEST(Schedule, MomentumChangesOnceEpochsAreDone) {
  const ScheduleOptions o = schedule("momentum: {2: 0.5, 3: 0.9}");
  EXPECT_EQ(momentum_at(o, 0, 0.1), 0.1);
  EXPECT_EQ(momentum_at(o, 1, 0.1), 0.1);
  EXPECT_EQ(momentum_at(o, 2, 0.1), 0.5);
  EXPECT_EQ(momentum_at(o, 3, 0.1), 0.9);
  EXPECT_EQ(momentum_at(o, 100, 0.1), 0.9);
  EXPECT_EQ(momentum_at(schedule("momentum: {0: 0}"), 0, 0.9), 0);
  EXPECT_EQ(momentum_at({}, 7, 0.9), 0.9);
  EXPECT_EQ(error_of<ScheduleOptions>("momentum: 0.9"),
            "a.yaml:1:11: x.momentum: expected {epoch: momentum, ...}");
  EXPECT_EQ(error_of<ScheduleOptions>("momentum: {-1: 0.9}"),
            "a.yaml:1:12: x.momentum: '-1' is no epoch; expected {epoch: momentum, ...}");
  EXPECT_EQ(error_of<ScheduleOptions>("momentum: {1: 1.5}"),
            "a.yaml:1:15: x.momentum.1: expected a number from 0 to 1, got '1.5'");
}

TEST(Schedule, ALinearDecayNeedsEpochsAfterTheWarmUp) {
  const ScheduleOptions o = schedule("{lr: 1, warmup_epochs: 3, decay: {linear: 0}}");
  check_schedule(o, 4, 128);
  check_schedule(o, 0, 128);  // a run without a step
  check_schedule(schedule("{warmup_epochs: 3}"), 3, 128);
  try {
    check_schedule(o, 3, 128);
    ADD_FAILURE();
  } catch (const ConfigError& e) {
    EXPECT_STREQ(e.what(),
                 "schedule.decay: a warm-up of 3 epochs leaves none of the run's 3 for a linear decay");
  }
}

TEST(Schedule, ConfigurationIsCheckedAndWritten) {
  EXPECT_EQ(
      error_of<ScheduleOptions>("decay: {eighty: 0.1}"),
      "a.yaml:1:9: x.decay: 'eighty' is no epoch; expected {epoch: factor, ...}, {every: epochs, factor: "
      "number}, {linear: rate} or {cosine: rate}");
  EXPECT_EQ(error_of<ScheduleOptions>("decay: {80: 0}"),
            "a.yaml:1:13: x.decay.80: expected a number > 0, got '0'");
  EXPECT_EQ(error_of<ScheduleOptions>("decay: {every: 2}"),
            "a.yaml:1:8: x.decay: the key 'factor' is missing; it must be given");
  EXPECT_EQ(error_of<ScheduleOptions>("decay: 3"),
            "a.yaml:1:8: x.decay: expected {epoch: factor, ...}, {every: epochs, factor: number}, {linear: "
            "rate} or {cosine: rate}");
  EXPECT_EQ(error_of<ScheduleOptions>("{lr: 1, decay: {cosine: 0, linear: 0}}"),
            "a.yaml:1:16: x.decay: either linear or cosine, not both");
  EXPECT_EQ(error_of<ScheduleOptions>("{lr: 1, decay: {linear: 0, 80: 0.1}}"),
            "a.yaml:1:28: x.decay.80: unknown key; allowed here: linear");
  EXPECT_EQ(error_of<ScheduleOptions>("{lr: 1, decay: {linear: 0, every: 2}}"),
            "a.yaml:1:28: x.decay.every: unknown key; allowed here: linear");
  EXPECT_EQ(error_of<ScheduleOptions>("{decay: {linear: -1}}"),
            "a.yaml:1:18: x.decay.linear: expected a number >= 0, got '-1'");
  for (const char* text :
       {"{lr: 0.2, decay: {3: 0.5, 7: 0.1}}", "{decay: {every: 3, factor: 0.25}}", "{decay: {linear: 0.01}}",
        "{decay: {cosine: 0.01}}", "{momentum: {0: 0, 4: 0.9}}", "{lr: 1}"}) {
    const config::Value once = config::write(schedule(text));
    EXPECT_EQ(config::emit(config::write(schedule(config::emit(once)))), config::emit(once));
  }
}

}  // namespace
}  // namespace lpsgd
