// A training state that holds a NaN or an infinity is never saved.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/transport.h"
#include "trainer/checkpoint.h"
#include "trainer/state_error.h"

namespace lpsgd {

/// A gradient, or a part of the training state, held a NaN or an infinity. All ranks throw it at one step.
class NonFiniteError : public StateError {
 public:
  using StateError::StateError;
};

bool all_finite(std::span<const float> values);

/// Looks at every value of every rank's `state`, and at the `averaged` running statistics. Throws
/// NonFiniteError that names what holds the first non-finite value, the step before `steps`, and the rank.
/// Collective.
void check_finite_state(Transport& transport, const TrainingState& state,
                        const std::vector<NamedBuffer>& averaged, std::int64_t steps);

}  // namespace lpsgd
