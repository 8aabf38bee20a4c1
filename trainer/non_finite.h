// A training state that holds a NaN or an infinity is never saved.
#pragma once

#include <cstdint>
#include <span>
#include <string>
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

/// What holds a value of `state`, or of the `averaged` running statistics, that is not finite, such as "the
/// weights of 'fc.weight'"; empty: nothing.
std::string first_non_finite(const TrainingState& state, const std::vector<NamedBuffer>& averaged);

/// Throws NonFiniteError if a rank's `found`, as first_non_finite() returns it, is not empty. The message
/// names it, the step before `steps`, and the rank. Collective.
void check_finite_everywhere(Transport& transport, const std::string& found, std::int64_t steps);
/// The same, of all ranks' `found`. Not collective.
void throw_if_non_finite(const std::vector<std::string>& of_ranks, std::int64_t steps);

}  // namespace lpsgd
