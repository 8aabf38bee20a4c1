// Compares the replicas of a run while it trains.
#pragma once

#include <cstdint>
#include <optional>

#include "comm/transport.h"
#include "nn/network.h"
#include "nn/optimizer.h"
#include "trainer/bit_flip.h"
#include "trainer/host_state.h"
#include "trainer/state_error.h"

namespace lpsgd {

/// The weights or the momentum of two ranks differ. All ranks throw it at one step.
class ReplicaError : public StateError {
 public:
  using StateError::StateError;
};

class ReplicaCheck {
 public:
  /// Compares after every `every` steps since the start of the run; 0: never. The references outlive the
  /// object. ConfigError if `flip` names a rank, a tensor or an element that there is not.
  ReplicaCheck(std::int64_t every, const BitFlip& flip, Transport& transport, Network& network,
               Optimizer& optimizer);

  /// What can be equal now: between two synchronisations nothing, after one the weights.
  enum class Comparable : std::uint8_t { nothing, weights, all };
  /// Puts the planned fault in, and compares if that is due. What is due between two synchronisations is done
  /// after the next one. Collective.
  void after_step(std::int64_t steps, Comparable comparable = Comparable::all);

  /// Compares now, unless `every` is 0 or this step was compared already. ReplicaError names the first
  /// tensor that differs, its first element that does, and the ranks. Waits for a GPU. Collective.
  void before_checkpoint(std::int64_t steps, Comparable comparable = Comparable::all);

 private:
  void flip();
  void compare(std::int64_t steps, Comparable comparable);

  const std::int64_t every_;
  const BitFlip flip_;
  Transport& transport_;
  Network& network_;
  std::optional<HostState> host_;  // if there is anything to do
  std::span<float> flipped_;       // the tensor that the planned fault changes
  std::int64_t compared_ = 0;      // steps at the last comparison
  bool due_ = false;
};

}  // namespace lpsgd
