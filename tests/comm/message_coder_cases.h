// Test cases of MessageCoder on the CPU and on a CUDA device. All ranks call each function; the transport
// moves the messages, as a program that uses MessageCoder would.
#pragma once

#include <string>
#include <vector>

#include "comm/transport.h"
#include "core/device.h"
#include "tests/comm/exchange_reference.h"

namespace lpsgd::message_coder_cases {

/// The means are `expected` (reference_means), whatever the buckets, also when these change between steps.
void equals_reference(Transport& transport, const ExchangeSetup& setup,
                      const std::vector<std::vector<float>>& expected, Device device);
/// A second coder goes on from the residuals of a first one.
void residuals_continue(Transport& transport, const std::string& codec, Device device);
/// A NaN reaches all ranks. In the next step the residuals that it has reached count as zero, and all others
/// as they are.
void goes_on_after_a_nan(Transport& transport, const std::string& codec, Device device);
/// All messages of a step together have 2 (K-1) copies of the encoded tensors.
void bytes_are_those_announced(Transport& transport, const std::string& codec, Device device);

}  // namespace lpsgd::message_coder_cases
