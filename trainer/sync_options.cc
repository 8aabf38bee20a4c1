#include "trainer/sync_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "comm/block_transport.h"
#include "core/config_shape.h"
#include "core/error.h"

namespace lpsgd {

namespace {

using config::Range;
using config::Value;

constexpr double max_steps = 1e12;
constexpr Range epoch_range{.min = 1, .max = 1e9};
constexpr const char* first_decay = "first_decay";
constexpr const char* node = "node";
constexpr Range block_range{.min = 1, .max = 1e6};

struct Kind {
  const char* name;
  std::vector<std::string> keys;  // beside `kind`
};

const std::array<Kind, 5>& kinds() {
  static const std::array<Kind, 5> all{
      {{"every_step", {}},
       {"local_sgd",
        {"steps", "warmup", "warmup_epochs", "fragments", "delay", "mix", "reset_momentum", "distance"}},
       {"post_local_sgd", {"steps", "from", "reset_momentum", "distance"}},
       {"hierarchical_local_sgd", {"steps", "block_steps", "ranks_per_block", "reset_momentum", "distance"}},
       {"block_momentum",
        {"steps", "warmup", "warmup_epochs", "momentum", "rate", "nesterov", "fragments", "delay", "mix",
         "reset_momentum", "distance"}}}};
  return all;
}

const Kind& kind_of(const SyncOptions& o) {
  return kinds()[static_cast<std::size_t>(o.kind)];
}

/// A linear or cosine decay has no first one: it begins with the run, or with the end of the warm-up.
std::optional<std::int64_t> first_decay_of(const ScheduleOptions& schedule) {
  if (schedule.every > 0 && schedule.factor < 1) return schedule.every;
  for (const auto& [epoch, factor] : schedule.decay)
    if (factor < 1) return epoch;
  return std::nullopt;
}

}  // namespace

bool SyncOptions::is_local() const {
  if (kind == SyncKind::every_step) return false;
  if (steps > 1 || force_differences) return true;
  return (reset_momentum && kind != SyncKind::post_local_sgd) ||
         (kind == SyncKind::hierarchical_local_sgd && block_steps > 1) ||
         (kind == SyncKind::block_momentum && (momentum > 0 || rate != 1));
}

bool SyncOptions::always_differences() const {
  return force_differences || kind == SyncKind::hierarchical_local_sgd || kind == SyncKind::block_momentum ||
         (kind == SyncKind::local_sgd && reset_momentum);
}

void ranks_per_block_field(config::Visitor& v, std::int64_t& ranks, const char* help) {
  v.shape([] {
    return config::Shape::choice({config::Shape::word({node}), config::Shape::integer(block_range)});
  });
  v.custom(
      "ranks_per_block", "node, or an integer >= 1", help,
      [&](const Value& value, const std::string& path) {
        ranks = 0;
        if (value.is_scalar() && value.scalar == node) return;
        ranks = config::to_integer(value, path, block_range);
      },
      [&] { return Value::plain(ranks > 0 ? fmt::format("{}", ranks) : node); });
}

void fields(config::Visitor& v, SyncOptions& o) {
  std::vector<const char*> names;
  for (const Kind& kind : kinds()) names.push_back(kind.name);
  auto index = static_cast<std::size_t>(o.kind);
  v.choice(
      "kind", index, std::span<const char* const>(names),
      "every_step: ranks average their gradients in every step; local_sgd: each trains by itself, and what "
      "its weights changed is averaged every `steps` steps; post_local_sgd: every_step first, then "
      "local_sgd; hierarchical_local_sgd: blocks of ranks average every `steps` steps, all ranks every "
      "`block_steps` times; block_momentum: local_sgd whose averages are applied with a momentum of their "
      "own");
  o.kind = static_cast<SyncKind>(index);
  v.field("steps", o.steps, "steps of each rank between two synchronisations",
          Range{.min = 1, .max = max_steps});
  v.choice(
      "warmup", o.warmup,
      {{"none", SyncWarmup::none},
       {"constant", SyncWarmup::constant},
       {"linear", SyncWarmup::linear},
       {"exponential", SyncWarmup::exponential}},
      "of local_sgd and block_momentum, what `steps` is at first; constant: 1; linear and exponential: it "
      "grows from 1 like that");
  v.field("warmup_epochs", o.warmup_epochs, "the epochs of `warmup`", Range{.min = 0, .max = 1e9});
  v.shape([] {
    return config::Shape::choice({config::Shape::word({first_decay}), config::Shape::integer(epoch_range)});
  });
  v.custom(
      "from", "first_decay, or an integer >= 1",
      "of post_local_sgd: steps are local once the learning rate has decayed, or this many epochs are done",
      [&](const Value& value, const std::string& path) {
        o.from.reset();
        if (value.is_scalar() && value.scalar == first_decay) return;
        o.from = config::to_integer(value, path, epoch_range);
      },
      [&] { return Value::plain(o.from ? fmt::format("{}", *o.from) : first_decay); });
  v.field("block_steps", o.block_steps,
          "of hierarchical_local_sgd: one synchronisation in so many is of all ranks, the others are within "
          "blocks",
          Range{.min = 1, .max = max_steps});
  ranks_per_block_field(
      v, o.ranks_per_block,
      "of hierarchical_local_sgd: node: the ranks of a machine; or so many consecutive ranks");
  v.field("momentum", o.momentum,
          "of block_momentum: mu in u = mu*u + mean(d), where d is what weights changed",
          Range{.min = 0, .max = 1});
  v.field("rate", o.rate, "of block_momentum: weights move by rate*u", Range{.min = 0, .min_open = true});
  v.field("nesterov", o.nesterov, "of block_momentum: weights move by rate*(mean(d) + mu*u)");
  v.field("fragments", o.fragments,
          "of local_sgd and block_momentum: so many groups of tensors are synchronised in turn, one every "
          "steps/fragments steps",
          Range{.min = 1, .max = 1e6});
  v.field("delay", o.delay,
          "of local_sgd and block_momentum: ranks take so many steps more while the mean is on its way; less "
          "than steps/fragments",
          Range{.min = 0, .max = max_steps});
  v.field("mix", o.mix,
          "with a delay: when the mean arrives, a rank keeps this share of how far its own weights are from "
          "the new "
          "ones",
          Range{.min = 0, .max = 1, .max_open = true});
  v.field("reset_momentum", o.reset_momentum,
          "a synchronisation sets the optimizer's momentum to zero; otherwise each rank keeps its own");
  v.field("distance", o.distance,
          "measure how far replicas are apart, once an epoch; this sends the weights twice");
}

bool is_sync_key(SyncKind kind, std::string_view key) {
  const std::vector<std::string>& keys = kinds()[static_cast<std::size_t>(kind)].keys;
  return key == "kind" || std::find(keys.begin(), keys.end(), key) != keys.end();
}

void check_sync(const SyncOptions& o, const Value* given, const ScheduleOptions& schedule) {
  const Kind& kind = kind_of(o);
  const bool is_map = given && given->is_map();
  if (is_map)
    for (const Value::Entry& e : given->entries)
      if (!is_sync_key(o.kind, e.key))
        throw ConfigError(fmt::format("sync.{}: is no key of {}; allowed with it: kind{}{}", e.key, kind.name,
                                      kind.keys.empty() ? "" : ", ", fmt::join(kind.keys, ", ")));
  if (o.kind == SyncKind::every_step) return;
  if (!is_map || !given->find("steps"))
    throw ConfigError(
        fmt::format("sync.kind: {} needs sync.steps, the steps between two synchronisations", kind.name));
  if ((o.warmup == SyncWarmup::none) != (o.warmup_epochs == 0))
    throw ConfigError(fmt::format("sync.warmup: needs both, a kind of warm-up and sync.warmup_epochs"));
  if (o.steps % o.fragments != 0)
    throw ConfigError(fmt::format(
        "sync.fragments: {} steps cannot be divided by {} fragments, of which each has its turn once in them",
        o.steps, o.fragments));
  if (o.delay >= o.steps_per_fragment() && o.delay > 0)
    throw ConfigError(fmt::format(
        "sync.delay: a mean must arrive before the next exchange begins, {} step{} later; allowed: at most "
        "{}",
        o.steps_per_fragment(), o.steps_per_fragment() == 1 ? "" : "s", o.steps_per_fragment() - 1));
  if (o.delay == 0 && is_map && given->find("mix"))
    throw ConfigError("sync.mix: has a meaning with sync.delay only");
  if (o.streams() && o.warmup != SyncWarmup::none)
    throw ConfigError("sync.warmup: with fragments or a delay the number of steps is fixed");
  if (o.kind == SyncKind::post_local_sgd && !o.from && !first_decay_of(schedule))
    throw ConfigError("sync.from: first_decay needs a factor below 1 in schedule.decay; or give an epoch");
}

void check_blocks(const SyncOptions& o, int ranks) {
  if (o.kind == SyncKind::hierarchical_local_sgd)
    check_block_size(o.ranks_per_block, ranks, "sync.ranks_per_block");
}

std::int64_t local_steps(const SyncOptions& o, const ScheduleOptions& schedule, std::int64_t epoch,
                         std::int64_t batch, std::int64_t batches) {
  if (o.kind == SyncKind::every_step) return 1;
  if (o.kind == SyncKind::post_local_sgd)
    return epoch >= (o.from ? *o.from : first_decay_of(schedule).value_or(0)) ? o.steps : 1;
  if (o.warmup == SyncWarmup::none || epoch >= o.warmup_epochs) return o.steps;
  const double share =
      (static_cast<double>(epoch) + static_cast<double>(batch) / static_cast<double>(batches)) /
      static_cast<double>(o.warmup_epochs);
  const auto h = static_cast<double>(o.steps);
  // What should be an integer may come out just below it.
  constexpr double up = 1 + 1e-9;
  if (o.warmup == SyncWarmup::linear) return 1 + static_cast<std::int64_t>((h - 1) * share * up);
  if (o.warmup == SyncWarmup::exponential) return static_cast<std::int64_t>(std::pow(h, share) * up);
  return 1;
}

bool any_exchange(const SyncOptions& o, const ScheduleOptions& schedule, std::int64_t begin, std::int64_t end,
                  std::int64_t epoch, std::int64_t batch, std::int64_t batches, SyncPosition at) {
  for (std::int64_t step = begin; step < end; ++step) {
    const std::int64_t h = local_steps(o, schedule, epoch, batch, batches);
    if (++batch == batches) ++epoch, batch = 0;
    if (h == 1 && !at.started && !o.always_differences()) return true;
    at.started = true;
    ++at.steps;
    if (o.streams() && at.steps % o.steps_per_fragment() == 0) return true;
    if (at.steps < h) continue;
    if (o.kind != SyncKind::hierarchical_local_sgd || ++at.rounds >= o.block_steps) return true;
    at.steps = 0;
  }
  return false;
}

}  // namespace lpsgd
