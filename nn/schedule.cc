#include "nn/schedule.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <iterator>
#include <numbers>

#include "core/config_shape.h"
#include "core/error.h"

namespace lpsgd {

namespace {

constexpr double max_epochs = 1e9;

const config::Range rate_factor{.min = 0, .min_open = true};

void periodic_fields(config::Visitor& v, ScheduleOptions& o) {
  v.required();
  v.field("every", o.every, "the number of epochs between two decays", {.min = 1, .max = max_epochs});
  v.required();
  v.field("factor", o.factor, "what the rate is multiplied by each time", rate_factor);
}

const char* key_of(const RateFall& fall) {
  return fall.cosine ? "cosine" : "linear";
}

void fall_fields(config::Visitor& v, RateFall& fall) {
  v.required();
  v.field(key_of(fall), fall.to,
          fall.cosine
              ? "the rate that it falls to along half a cosine, step by step, from the end of the warm-up to "
                "that of the run"
              : "the rate that it falls to, step by step, from the end of the warm-up to that of the run",
          {.min = 0});
}

constexpr const char* decay_type =
    "{epoch: factor, ...}, {every: epochs, factor: number}, {linear: rate} or {cosine: rate}";

std::int64_t to_epoch(const config::Value::Entry& e, std::int64_t least, const char* expected,
                      const std::string& path) {
  std::int64_t epoch = 0;
  const char* last = e.key.data() + e.key.size();
  const auto [end, error] = std::from_chars(e.key.data(), last, epoch);
  if (error != std::errc{} || end != last || epoch < least || static_cast<double>(epoch) > max_epochs)
    config::fail(e.origin, path, fmt::format("'{}' is no epoch; expected {}", e.key, expected));
  return epoch;
}

void parse_decay(ScheduleOptions& o, const config::Value& value, const std::string& path) {
  if (!value.is_map() && !value.is_null())
    config::fail(value.origin, path, fmt::format("expected {}", decay_type));
  o.decay.clear();
  o.every = 0;
  o.factor = 1;
  o.fall.reset();
  if (value.find("linear") && value.find("cosine"))
    config::fail(value.origin, path, "either linear or cosine, not both");
  if (value.find("linear") || value.find("cosine")) {
    config::Reader reader(value, path);
    o.fall.emplace().cosine = !value.find("linear");
    fall_fields(reader, *o.fall);
    reader.finish();
    return;
  }
  if (value.find("every") || value.find("factor")) {
    config::Reader reader(value, path);
    periodic_fields(reader, o);
    reader.finish();
    return;
  }
  for (const config::Value::Entry& e : value.entries) {
    const std::int64_t epoch = to_epoch(e, 1, decay_type, path);
    if (o.decay.contains(epoch)) config::fail(e.origin, path, fmt::format("epoch {} is given twice", epoch));
    o.decay[epoch] = config::to_number(e.value, path + "." + e.key, rate_factor);
  }
}

constexpr const char* momentum_type = "{epoch: momentum, ...}";
const config::Range momentum_range{.min = 0, .max = 1};

void parse_momentum(ScheduleOptions& o, const config::Value& value, const std::string& path) {
  if (!value.is_map() && !value.is_null())
    config::fail(value.origin, path, fmt::format("expected {}", momentum_type));
  o.momentum.clear();
  for (const config::Value::Entry& e : value.entries) {
    const std::int64_t epoch = to_epoch(e, 0, momentum_type, path);
    if (o.momentum.contains(epoch))
      config::fail(e.origin, path, fmt::format("epoch {} is given twice", epoch));
    o.momentum[epoch] = config::to_number(e.value, path + "." + e.key, momentum_range);
  }
}

config::Value write_momentum(const ScheduleOptions& o) {
  config::Value map = config::Value::map();
  for (const auto& [epoch, mu] : o.momentum)
    map.set(fmt::format("{}", epoch), config::Value::plain(config::number_text(mu)));
  return map;
}

config::Value write_decay(const ScheduleOptions& o) {
  config::Value map = config::Value::map();
  if (o.every > 0) {
    map.set("every", config::Value::plain(fmt::format("{}", o.every)));
    map.set("factor", config::Value::plain(config::number_text(o.factor)));
  }
  if (o.fall) map.set(key_of(*o.fall), config::Value::plain(config::number_text(o.fall->to)));
  for (const auto& [epoch, factor] : o.decay)
    map.set(fmt::format("{}", epoch), config::Value::plain(config::number_text(factor)));
  return map;
}

}  // namespace

void fields(config::Visitor& v, ScheduleOptions& o) {
  v.field("lr", o.lr, "the learning rate, after warm-up and before any decay", {.min = 0});
  v.choice("lr_scaling", o.lr_scaling,
           {{"none", RateScaling::none}, {"linear", RateScaling::linear}, {"sqrt", RateScaling::sqrt}},
           "lr is for lr_batch_size; linear: it is multiplied by train.batch_size / lr_batch_size, sqrt: by "
           "the root of that. A warm-up then starts from lr as it is written, and warmup_from has no effect");
  v.field("lr_batch_size", o.lr_batch_size, "the global batch size that lr is for, with lr_scaling",
          {.min = 1, .max = max_epochs});
  v.field("warmup_epochs", o.warmup_epochs,
          "the rate rises linearly, step by step, over this many epochs; 0: no warm-up",
          {.min = 0, .max = max_epochs});
  v.field("warmup_from", o.warmup_from,
          "the learning rate of the first step of the warm-up; without effect with lr_scaling", {.min = 0});
  v.shape([] {
    ScheduleOptions none;
    RateFall linear, cosine{.cosine = true};
    return config::Shape::choice(
        {config::Shape::map([&](config::Visitor& inner) { periodic_fields(inner, none); }),
         config::Shape::map([&](config::Visitor& inner) { fall_fields(inner, linear); }),
         config::Shape::map([&](config::Visitor& inner) { fall_fields(inner, cosine); }),
         config::Shape::table(config::Shape::number(rate_factor))});
  });
  v.custom(
      "decay", decay_type,
      "after the given number of epochs, or every so many epochs, the learning rate is multiplied by the "
      "factor; linear, cosine: it falls step by step, from the end of the warm-up to this rate at the run's "
      "end",
      [&](const config::Value& value, const std::string& path) { parse_decay(o, value, path); },
      [&] { return write_decay(o); });
  v.shape([] { return config::Shape::table(config::Shape::number(momentum_range)); });
  v.custom(
      "momentum", momentum_type,
      "once the given number of epochs is done, this takes the place of optimizer.momentum",
      [&](const config::Value& value, const std::string& path) { parse_momentum(o, value, path); },
      [&] { return write_momentum(o); });
}

double rate_scale(const ScheduleOptions& o, std::int64_t batch_size) {
  const double ratio = static_cast<double>(batch_size) / static_cast<double>(o.lr_batch_size);
  return o.lr_scaling == RateScaling::none     ? 1
         : o.lr_scaling == RateScaling::linear ? ratio
                                               : std::sqrt(ratio);
}

void scale_rate(ScheduleOptions& o, std::int64_t batch_size) {
  o.scale = rate_scale(o, batch_size);
}

void check_schedule(const ScheduleOptions& o, std::int64_t epochs, std::int64_t batch_size) {
  const double full = o.lr * rate_scale(o, batch_size);
  if (o.fall && o.fall->to > full * (1 + 1e-9))
    throw ConfigError(fmt::format("schedule.decay: the rate would rise from {:.6g} to {}: {}", full,
                                  key_of(*o.fall), o.fall->to));
  if (o.fall && epochs > 0 && o.warmup_epochs >= epochs)
    throw ConfigError(
        fmt::format("schedule.decay: a warm-up of {} epochs leaves none of the run's {} for a {} decay",
                    o.warmup_epochs, epochs, key_of(*o.fall)));
}

double learning_rate(const ScheduleOptions& o, std::int64_t step, std::int64_t steps_per_epoch,
                     std::int64_t epochs) {
  const std::int64_t epoch = step / steps_per_epoch;
  const double full = o.lr * o.scale, from = o.lr_scaling == RateScaling::none ? o.warmup_from : o.lr;
  double lr = full;
  if (epoch < o.warmup_epochs) {
    const double share = static_cast<double>(step) / static_cast<double>(o.warmup_epochs * steps_per_epoch);
    lr = from + (full - from) * share;
  }
  const std::int64_t peak = o.warmup_epochs * steps_per_epoch, end = epochs * steps_per_epoch;
  if (o.fall && step >= peak) {
    if (step >= end) return o.fall->to;
    const double left = static_cast<double>(end - step) / static_cast<double>(end - peak);
    const double height = o.fall->cosine ? (1 - std::cos(std::numbers::pi * left)) / 2 : left;
    return o.fall->to + (full - o.fall->to) * height;
  }
  if (o.every > 0) lr *= std::pow(o.factor, static_cast<double>(epoch / o.every));
  for (const auto& [done, factor] : o.decay)
    if (epoch >= done) lr *= factor;
  return lr;
}

double momentum_at(const ScheduleOptions& o, std::int64_t epoch, double initial) {
  const auto next = o.momentum.upper_bound(epoch);
  return next == o.momentum.begin() ? initial : std::prev(next)->second;
}

}  // namespace lpsgd
