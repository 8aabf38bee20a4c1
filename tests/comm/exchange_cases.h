// What the exchange must do over every transport; each function is called by all ranks at once.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/exchange.h"
#include "tests/comm/exchange_reference.h"

namespace lpsgd::exchange_cases {

using Means = std::vector<std::vector<float>>;  // an arena per step

/// Ways of cutting, packing and overlapping that must not change a bit.
std::vector<ExchangeOptions> all_options(const ExchangeSetup& setup);

/// Announces all tensors of rank's `gradients`, in place.
void exchange_step(Exchange& exchange, const ExchangeSetup& setup, std::uint32_t step);
/// This rank's arenas after each of `steps` steps.
Means run(Transport& transport, const ExchangeSetup& setup, const ExchangeOptions& options,
          std::uint32_t steps);
/// The values that belong to tensors, in order: without the gaps of the arena.
std::vector<float> tensor_values(const ExchangeSetup& setup, const std::vector<float>& arena);

void equals_reference(Transport& transport, const ExchangeSetup& setup, const Means& expected);
void replicas_stay_equal(Transport& transport, const std::string& codec);
void none_is_the_mean(Transport& transport, Collective collective);
void residuals_continue(Transport& transport, const std::string& codec);
void non_finite_is_named(Transport& transport, const std::string& codec, Collective collective);
void bytes_are_those_announced(Transport& transport, const std::string& codec, Collective collective);
void simulated_decodes_its_own(Transport& transport, const std::string& codec);

}  // namespace lpsgd::exchange_cases
