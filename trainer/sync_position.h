#pragma once

#include <cstdint>

namespace lpsgd {

/// Where a run is between two synchronisations, for checkpoints.
struct SyncPosition {
  bool started = false;              // what is exchanged is no longer gradients
  std::int64_t steps = 0;            // local ones since the last synchronisation
  std::int64_t rounds = 0;           // synchronisations within blocks since the last one of all ranks
  std::int64_t ranks_per_block = 0;  // of hierarchical_local_sgd
  /// With fragments or a delay: ranks' weights differ even where `steps` is 0. A run that goes on without
  /// them keeps it until its next synchronisation of all ranks.
  bool streams = false;
  /// The mean of these tensors' changes ([first, last)) has been taken, or is on its way. It is applied at
  /// the end of step `due`, counted from the run's start.
  struct Pending {
    std::int64_t first = 0, last = 0;  // last is 0: there is none
    std::int64_t due = 0;
    bool operator==(const Pending&) const = default;
  };
  Pending pending = {};
  bool has_pending() const { return pending.last > 0; }
  bool operator==(const SyncPosition&) const = default;
};

}  // namespace lpsgd
