// The weights that a run starts from, where they are given (lpsgd train --init).
#pragma once

#include <string>
#include <vector>

#include "nn/network.h"
#include "nn/network_spec.h"

namespace lpsgd {

struct InitialWeights {
  std::vector<float> parameters;            // an arena
  std::vector<std::vector<float>> buffers;  // of each of the network's buffers
  std::string checksum;                     // of both, 16 hexadecimal digits
};

/// Of a file (PyTorch's names and order), a checkpoint or a run. It must hold each tensor and buffer of the
/// network, and no other. Throws ConfigError "--init: ..." if it does not, if it is damaged, or if a value is
/// not finite.
InitialWeights read_initial_weights(const std::string& path, const NetworkSpec& spec);

/// Makes the network start from them.
void set_weights(Network& network, const InitialWeights& weights);

}  // namespace lpsgd
