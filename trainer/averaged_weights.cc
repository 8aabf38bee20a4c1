#include "trainer/averaged_weights.h"

#include <algorithm>

#include "core/device.h"
#include "core/log.h"

namespace lpsgd {

AveragedWeights::AveragedWeights(Transport& transport, Network& network)
    : own_(network.parameters().size()), mean_(own_.size()) {
  copy_values(own_.view(), network.parameters(), network.stream());
  network.stream().synchronize();
  std::ranges::copy(own_.view(), mean_.data());
  bytes_sent_ = transport.average(mean_.view());
}

Deviation AveragedWeights::deviation_from(std::span<const float> start) const {
  Deviation out;
  for (std::size_t i = 0; i < start.size(); ++i) {
    const double mean = static_cast<double>(mean_[i]), apart = static_cast<double>(own_[i]) - mean;
    const double change = mean - static_cast<double>(start[i]);
    out.deviation += apart * apart;
    out.change += change * change;
  }
  return out;
}

AveragedWeights::Installed::Installed(const AveragedWeights& averaged, Network& network)
    : averaged_(averaged), network_(network) {
  copy_values(network.parameters(), averaged.mean_.view(), network.stream());
}

AveragedWeights::Installed::~Installed() {
  try {
    copy_values(network_.parameters(), averaged_.own_.view(), network_.stream());
    network_.stream().synchronize();
  } catch (const std::exception& e) {  // of a device that has failed: the next call reports it
    log::debug("{}", e.what());
  }
}

}  // namespace lpsgd
