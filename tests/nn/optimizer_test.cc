// The optimizer against torch.optim.SGD's rules written out in double, and the schedule's values.
#include "nn/optimizer.h"

#include <gtest/gtest.h>

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
  std::vector<double> rw(arena), rv(arena);
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
      bool decayed = true;
      for (const std::string& kind : options.no_decay) decayed = decayed && kind != to_text(t.kind);
      for (std::int64_t k = t.offset; k < t.offset + t.elements; ++k) {
        const std::size_t i = static_cast<std::size_t>(k);
        const double d = static_cast<double>(g[i]) * scale + (decayed ? options.weight_decay * rw[i] : 0);
        rv[i] = mu * rv[i] + gain * d;
        rw[i] -= lr * (options.nesterov ? gain * d + mu * rv[i] : rv[i]);
      }
    }
    if (later && step == 2) optimizer.set_momentum(*later);
    optimizer.set_rate(lr);
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
  EXPECT_EQ(error_of<OptimizerOptions>("kind: adam"),
            "a.yaml:1:7: x.kind: 'adam' is not known; allowed: sgd");
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
  check_schedule(o, 4);
  check_schedule(o, 0);  // a run without a step
  check_schedule(schedule("{warmup_epochs: 3}"), 3);
  try {
    check_schedule(o, 3);
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
      "number} or {linear: rate}");
  EXPECT_EQ(error_of<ScheduleOptions>("decay: {80: 0}"),
            "a.yaml:1:13: x.decay.80: expected a number > 0, got '0'");
  EXPECT_EQ(error_of<ScheduleOptions>("decay: {every: 2}"),
            "a.yaml:1:8: x.decay: the key 'factor' is missing; it must be given");
  EXPECT_EQ(error_of<ScheduleOptions>("decay: 3"),
            "a.yaml:1:8: x.decay: expected {epoch: factor, ...}, {every: epochs, factor: number} or {linear: "
            "rate}");
  EXPECT_EQ(error_of<ScheduleOptions>("{lr: 1, decay: {linear: 0, 80: 0.1}}"),
            "a.yaml:1:28: x.decay.80: unknown key; allowed here: linear");
  EXPECT_EQ(error_of<ScheduleOptions>("{lr: 1, decay: {linear: 0, every: 2}}"),
            "a.yaml:1:28: x.decay.every: unknown key; allowed here: linear");
  EXPECT_EQ(error_of<ScheduleOptions>("{decay: {linear: 2}, lr: 1}"),
            "a.yaml:1:18: x.decay.linear: the rate would rise from 1 to 2");
  EXPECT_EQ(error_of<ScheduleOptions>("{decay: {linear: -1}}"),
            "a.yaml:1:18: x.decay.linear: expected a number >= 0, got '-1'");
  for (const char* text : {"{lr: 0.2, decay: {3: 0.5, 7: 0.1}}", "{decay: {every: 3, factor: 0.25}}",
                           "{decay: {linear: 0.01}}", "{momentum: {0: 0, 4: 0.9}}", "{lr: 1}"}) {
    const config::Value once = config::write(schedule(text));
    EXPECT_EQ(config::emit(config::write(schedule(config::emit(once)))), config::emit(once));
  }
}

}  // namespace
}  // namespace lpsgd
