// Test cases of the exchange for every transport and device. All ranks call each function.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/exchange.h"
#include "tests/comm/exchange_reference.h"

namespace lpsgd::exchange_cases {

using Means = std::vector<std::vector<float>>;  // an arena per step

/// A collective, and the blocks of ranks of a hierarchical one.
struct Way {
  Way(Collective c = Collective::reduce_broadcast, int size = 1)  // NOLINT(google-explicit-constructor)
      : collective(c), ranks_per_block(size) {}
  Collective collective;
  int ranks_per_block;
};
/// Ways of cutting, packing and overlapping that must not change a bit.
std::vector<ExchangeOptions> all_options(const ExchangeSetup& setup, const Way& way = {});

/// A rank's gradients, in host or device memory.
class Arena {
 public:
  virtual ~Arena() = default;
  virtual std::span<float> values() = 0;
  /// The options with what this arena needs.
  virtual ExchangeOptions adapt(ExchangeOptions options) = 0;
  /// Queues writing values[first, first + n) where the gradients are computed. `values` stay as they are
  /// until read().
  virtual void write(const float* values, std::int64_t first, std::int64_t n) = 0;
  /// What the arena holds when all that is queued is done.
  virtual std::vector<float> read() = 0;
};
using MakeArena = std::function<std::unique_ptr<Arena>(std::size_t size)>;
std::unique_ptr<Arena> host_arena(std::size_t size);

/// Writes and submits this rank's gradients `own` of one step, tensor by tensor. Returns the means.
std::vector<float> exchange_step(Exchange& exchange, const ExchangeSetup& setup, std::uint32_t step,
                                 Arena& arena, const std::vector<float>& own);
/// This rank's arenas after each of `steps` steps.
Means run(Transport& transport, const ExchangeSetup& setup, const ExchangeOptions& options,
          std::uint32_t steps, const MakeArena& arena = host_arena);
/// The values that belong to tensors, in order: without the gaps of the arena.
std::vector<float> tensor_values(const ExchangeSetup& setup, const std::vector<float>& arena);

void equals_reference(Transport& transport, const ExchangeSetup& setup, const Means& expected,
                      const ExchangeOptions& options, const MakeArena& arena);
/// The same with each of all_options().
void equals_reference(Transport& transport, const ExchangeSetup& setup, const Means& expected,
                      const MakeArena& arena = host_arena, const Way& way = {});
void replicas_stay_equal(Transport& transport, const std::string& codec, const MakeArena& arena = host_arena,
                         const Way& way = {});
void none_is_the_mean(Transport& transport, const Way& way, const MakeArena& arena = host_arena);
void residuals_continue(Transport& transport, const std::string& codec, const MakeArena& arena = host_arena,
                        const Way& way = {});
/// A step that goes through the parts one after another, some of them while the caller does something else.
void parts_are_the_whole(Transport& transport, const std::string& codec, const Way& way,
                         const MakeArena& arena = host_arena);
void non_finite_is_named(Transport& transport, const std::string& codec, const Way& way,
                         const MakeArena& arena = host_arena);
void bytes_are_those_announced(Transport& transport, const std::string& codec, const Way& way,
                               const MakeArena& arena = host_arena);
void simulated_decodes_its_own(Transport& transport, const std::string& codec,
                               const MakeArena& arena = host_arena);

/// Coding errors as docs/exchange.md defines them, and none if they are not measured.
void errors_are_measured(Transport& transport, const std::string& codec, const MakeArena& arena = host_arena,
                         const Way& way = {});

}  // namespace lpsgd::exchange_cases
