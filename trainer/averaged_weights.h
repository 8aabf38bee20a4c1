// The mean of the ranks' weights, which between two synchronisations differ.
#pragma once

#include <cstdint>
#include <span>

#include "comm/transport.h"
#include "core/buffer.h"
#include "nn/network.h"

namespace lpsgd {

/// Sums of squares over the values of one rank: how far its weights are from the mean, and the mean from
/// where all ranks started.
struct Deviation {
  double deviation = 0, change = 0;
};

class AveragedWeights {
 public:
  /// Takes the mean in rank order, in host memory. Collective.
  AveragedWeights(Transport& transport, Network& network);
  std::span<const float> values() const { return mean_.view(); }  // laid out like the parameters
  /// `start`: the weights that the ranks last agreed on, in host memory.
  Deviation deviation_from(std::span<const float> start) const;
  /// What this rank sent for it.
  std::uint64_t bytes_sent() const { return bytes_sent_; }

  /// While it lives, the network has the mean in place of its own weights.
  class Installed {
   public:
    Installed(const AveragedWeights& averaged, Network& network);
    ~Installed();
    Installed(const Installed&) = delete;
    Installed& operator=(const Installed&) = delete;

   private:
    const AveragedWeights& averaged_;
    Network& network_;
  };

 private:
  Buffer<float> own_, mean_;
  std::uint64_t bytes_sent_ = 0;
};

}  // namespace lpsgd
