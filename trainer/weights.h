// A network's weights and running statistics, read from a file, a checkpoint or a run.
#pragma once

#include <string>
#include <vector>

#include "core/name_patterns.h"
#include "nn/network.h"
#include "nn/network_spec.h"

namespace lpsgd {

struct Weights {
  NamePatterns skip;                        // tensors that have no values here
  std::string found_in;                     // the file, or the checkpoint's folder
  std::vector<float> parameters, frozen;    // arenas
  std::vector<std::vector<float>> buffers;  // of each of the network's buffers
  std::string checksum;                     // of all of them, 16 hexadecimal digits
};

/// Of a file (PyTorch's names and order), a checkpoint or a run. It must hold each tensor and buffer of the
/// network, and no other: otherwise UnfitTensorError. FileError if it is damaged, or if a value is not
/// finite.
Weights read_weights(const std::string& path, const NetworkSpec& spec);

/// As read_weights(), for `lpsgd train --init --init-skip`: throws ConfigError "--init: ...". Tensors with a
/// name of `skip` are not read, nor need they be in the file, or in the network. Each of `skip` must name a
/// tensor of one of them.
Weights read_initial_weights(const std::string& path, const NetworkSpec& spec,
                             const std::vector<std::string>& skip);

/// Makes the network start from them. Those that are skipped stay as they are.
void set_weights(Network& network, const Weights& weights);

/// The names of the network's tensors and buffers that are skipped.
std::vector<std::string> skipped(const NetworkSpec& spec, const Weights& weights);

/// Views of the buffers, with the network's names and shapes.
std::vector<NamedBuffer> named_buffers(const NetworkSpec& spec, Weights& weights);

}  // namespace lpsgd
