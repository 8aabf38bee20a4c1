#include "trainer/config_checks.h"

#include <fmt/format.h>

#include <string>
#include <variant>

#include "core/error.h"

namespace lpsgd {

namespace {

/// Why the key has no effect in this run; empty: it has one.
std::string why_unread(const RunConfig& run, std::string_view section, std::string_view key) {
  const auto is_one_of = [&](auto... names) { return ((key == names) || ...); };
  constexpr const char* adam_moments = "adam and adamw have moments of their own (beta1, beta2)";
  const OptimizerKind kind = run.optimizer.kind;
  if (section == "optimizer") {
    if (run.optimizer.is_adam() && is_one_of("momentum", "nesterov", "momentum_unit_gain"))
      return adam_moments;
    if (kind != OptimizerKind::lars && is_one_of("trust", "lars_exclude")) return "is a key of kind lars";
    if (!run.optimizer.is_adam() && is_one_of("beta1", "beta2", "eps"))
      return "is a key of the kinds adam and adamw";
  }
  if (section == "schedule") {
    if (run.optimizer.is_adam() && is_one_of("momentum")) return adam_moments;
    const bool scaled = run.schedule.lr_scaling != RateScaling::none;
    if (scaled && is_one_of("warmup_from"))
      return "with schedule.lr_scaling a warm-up starts from schedule.lr";
    if (!scaled && is_one_of("lr_batch_size")) return "has a meaning with schedule.lr_scaling only";
  }
  if (section == "exchange" && run.exchange.collective != Collective::hierarchical &&
      is_one_of("ranks_per_block"))
    return "is a key of collective hierarchical";
  return "";
}

/// With unit gain a momentum of 1 leaves the gradients out.
void check_momentum(const RunConfig& run) {
  if (!run.optimizer.momentum_unit_gain) return;
  constexpr const char* message = "with optimizer.momentum_unit_gain it must be less than 1";
  if (run.optimizer.momentum == 1) throw ConfigError(fmt::format("optimizer.momentum: {}", message));
  for (const auto& [epoch, mu] : run.schedule.momentum)
    if (mu == 1) throw ConfigError(fmt::format("schedule.momentum.{}: {}", epoch, message));
}

bool votes(const CodecSpec& codec) {
  const auto* const sign = std::get_if<SignOptions>(&codec.options);
  return sign && sign->majority;
}

void check_local_steps(const RunConfig& run) {
  if (!run.sync.is_local()) return;
  constexpr const char* vote =
      "majority: true sends signs without a scale. With local steps they stand for changes of weights, so "
      "each synchronisation would move every weight by 1; use sign without majority, or sync.kind: "
      "every_step";
  if (votes(run.exchange.policy.codec)) throw ConfigError(fmt::format("exchange.codec: {}", vote));
  for (const PolicyRule& rule : run.exchange.policy.rules)
    if (votes(rule.codec)) throw ConfigError(fmt::format("exchange.rules: {}", vote));
  if (run.sync.reset_momentum && run.optimizer.is_adam())
    throw ConfigError(
        "sync.reset_momentum: adam and adamw correct their moments by the number of the run's steps, so "
        "moments that start again from zero would be corrected wrongly; it is for sgd and lars");
}

}  // namespace

bool is_read(const RunConfig& run, std::string_view section, std::string_view key) {
  if (section != "sync") return why_unread(run, section, key).empty();
  return is_sync_key(run.sync.kind, key) && (key != "mix" || run.sync.delay > 0);
}

void check_combinations(const RunConfig& run) {
  check_schedule(run.schedule, run.train.epochs, run.train.batch_size);
  for (const auto& [ranks, size] : run.train.batch_sizes)
    check_schedule(run.schedule, run.train.epochs, size);
  for (const char* const section : {"optimizer", "schedule", "exchange"}) {
    const config::Value* const given = run.tree.find(section);
    if (!given || !given->is_map()) continue;
    for (const config::Value::Entry& e : given->entries)
      if (const std::string why = why_unread(run, section, e.key); !why.empty())
        throw ConfigError(fmt::format("{}.{}: {}", section, e.key, why));
  }
  check_momentum(run);
  check_sync(run.sync, run.tree.find("sync"), run.schedule);
  check_local_steps(run);
}

}  // namespace lpsgd
