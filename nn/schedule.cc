#include "nn/schedule.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

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

void parse_decay(ScheduleOptions& o, const config::Value& value, const std::string& path) {
  if (!value.is_map() && !value.is_null())
    config::fail(value.origin, path, "expected {epoch: factor, ...} or {every: epochs, factor: number}");
  o.decay.clear();
  o.every = 0;
  o.factor = 1;
  if (value.find("every") || value.find("factor")) {
    config::Reader reader(value, path);
    periodic_fields(reader, o);
    reader.finish();
    return;
  }
  for (const config::Value::Entry& e : value.entries) {
    config::Value key = config::Value::plain(e.key);
    key.origin = e.origin;
    std::int64_t epoch = 0;
    const auto [end, error] = std::from_chars(e.key.data(), e.key.data() + e.key.size(), epoch);
    if (error != std::errc{} || end != e.key.data() + e.key.size() || epoch < 1 ||
        static_cast<double>(epoch) > max_epochs)
      config::fail(
          e.origin, path,
          fmt::format("'{}' is no epoch; expected {{epoch: factor, ...}} or {{every: epochs, factor: "
                      "number}}",
                      e.key));
    o.decay[epoch] = config::to_number(e.value, path + "." + e.key, rate_factor);
  }
}

config::Value write_decay(const ScheduleOptions& o) {
  config::Value map = config::Value::map();
  if (o.every > 0) {
    map.set("every", config::Value::plain(fmt::format("{}", o.every)));
    map.set("factor", config::Value::plain(config::number_text(o.factor)));
  }
  for (const auto& [epoch, factor] : o.decay)
    map.set(fmt::format("{}", epoch), config::Value::plain(config::number_text(factor)));
  return map;
}

}  // namespace

void fields(config::Visitor& v, ScheduleOptions& o) {
  v.field("lr", o.lr, "the learning rate, after warm-up and before any decay", {.min = 0});
  v.field("warmup_epochs", o.warmup_epochs,
          "the rate rises linearly, step by step, over this many epochs; 0: no warm-up",
          {.min = 0, .max = max_epochs});
  v.field("warmup_from", o.warmup_from, "the learning rate of the first step of the warm-up", {.min = 0});
  v.shape([] {
    ScheduleOptions none;
    return config::Shape::choice(
        {config::Shape::map([&](config::Visitor& inner) { periodic_fields(inner, none); }),
         config::Shape::table(config::Shape::number(rate_factor))});
  });
  v.custom(
      "decay", "{epoch: factor, ...} or {every: epochs, factor: number}",
      "after the given number of epochs, or every so many epochs, the learning rate is multiplied by the "
      "factor",
      [&](const config::Value& value, const std::string& path) { parse_decay(o, value, path); },
      [&] { return write_decay(o); });
}

double learning_rate(const ScheduleOptions& o, std::int64_t step, std::int64_t steps_per_epoch) {
  const std::int64_t epoch = step / steps_per_epoch;
  double lr = o.lr;
  if (epoch < o.warmup_epochs) {
    const double share = static_cast<double>(step) / static_cast<double>(o.warmup_epochs * steps_per_epoch);
    lr = o.warmup_from + (o.lr - o.warmup_from) * share;
  }
  if (o.every > 0) lr *= std::pow(o.factor, static_cast<double>(epoch / o.every));
  for (const auto& [done, factor] : o.decay)
    if (epoch >= done) lr *= factor;
  return lr;
}

}  // namespace lpsgd
