// When ranks synchronise: section `sync` of the configuration (docs/local-sgd.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "core/config.h"
#include "nn/schedule.h"
#include "trainer/sync_position.h"

namespace lpsgd {

enum class SyncKind : std::uint8_t {
  every_step,
  local_sgd,
  post_local_sgd,
  hierarchical_local_sgd,
  block_momentum
};
enum class SyncWarmup : std::uint8_t { none, constant, linear, exponential };

struct SyncOptions {
  SyncKind kind = SyncKind::every_step;
  std::int64_t steps = 1;  // H: local steps between synchronisations
  SyncWarmup warmup = SyncWarmup::none;
  std::int64_t warmup_epochs = 0;
  std::optional<std::int64_t> from = {};  // of post_local_sgd: an epoch; none: the first decay of the rate
  std::int64_t block_steps = 1;           // Hb: synchronisations from one of all ranks to the next
  std::int64_t ranks_per_block = 0;       // 0: those of a machine
  double momentum = 0.9, rate = 1;        // of block_momentum
  bool nesterov = false;
  std::int64_t fragments = 1;      // F: groups of tensors that are synchronised in turn
  std::int64_t delay = 0;          // steps that ranks take while the mean is on its way
  double mix = 0.5;                // with a delay: the share of its own weights that a rank keeps
  bool reset_momentum = false;     // the optimizer's, after each synchronisation
  bool distance = true;            // measure it, once an epoch
  bool force_differences = false;  // no key: steps of 1 also go through differences

  /// Whether ranks may take a step that they do not exchange, or not as gradients.
  bool is_local() const;
  /// With local steps: whether ranks exchange differences as long as H is 1, too. What is done to them cannot
  /// be done to gradients.
  bool always_differences() const;
  /// Whether fragments, of which there may be one, are synchronised in turn or later than they leave.
  bool streams() const { return fragments > 1 || delay > 0; }
  /// From one synchronisation of a fragment to the next one of another.
  std::int64_t steps_per_fragment() const { return steps / fragments; }
};
void fields(config::Visitor& visitor, SyncOptions& options);  // section `sync`
/// The key `ranks_per_block`; `node` is 0.
void ranks_per_block_field(config::Visitor& visitor, std::int64_t& ranks, const char* help);

/// Whether the key of section `sync` belongs to this kind.
bool is_sync_key(SyncKind kind, std::string_view key);

/// Refuses what does not fit together. `given`: the section as written, or null. Throws ConfigError
/// "sync.from:
/// ...".
void check_sync(const SyncOptions& options, const config::Value* given, const ScheduleOptions& schedule);

/// Checks the size of blocks against the number of ranks. ConfigError.
void check_blocks(const SyncOptions& options, int ranks);

/// H of batch `batch` of an epoch of `batches`; epochs and batches count from 0.
std::int64_t local_steps(const SyncOptions& options, const ScheduleOptions& schedule, std::int64_t epoch,
                         std::int64_t batch, std::int64_t batches);

/// Whether all ranks exchange anything in the steps from `begin` to `end`, counted from the run's start.
/// `batch`: that of step `begin` in `epoch`; `at`: where the steps before have left local steps.
bool any_exchange(const SyncOptions& options, const ScheduleOptions& schedule, std::int64_t begin,
                  std::int64_t end, std::int64_t epoch, std::int64_t batch, std::int64_t batches,
                  SyncPosition at);

}  // namespace lpsgd
