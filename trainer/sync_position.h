#pragma once

#include <cstdint>

namespace lpsgd {

/// Where a run is between two synchronisations, for checkpoints.
struct SyncPosition {
  bool started = false;              // what is exchanged is no longer gradients
  std::int64_t steps = 0;            // local ones since the last synchronisation
  std::int64_t rounds = 0;           // synchronisations within blocks since the last one of all ranks
  std::int64_t ranks_per_block = 0;  // of hierarchical_local_sgd
  bool operator==(const SyncPosition&) const = default;
};

}  // namespace lpsgd
