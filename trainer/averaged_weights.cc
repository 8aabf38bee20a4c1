#include "trainer/averaged_weights.h"

#include <algorithm>

#include "core/device.h"
#include "core/log.h"

namespace lpsgd {

AveragedWeights::AveragedWeights(Transport& transport, Network& network)
    : own_(network.parameters().size()), mean_(own_.size()) {
  copy_values(own_.view(), network.parameters(), network.stream());
  network.stream().synchronize();
  constexpr std::size_t piece = std::size_t{1} << 18;  // values at a time
  const auto ranks = static_cast<std::size_t>(transport.size());
  const float scale = 1.0f / static_cast<float>(ranks);
  Buffer<float> all(std::min(piece, own_.size()) * ranks);
  for (std::size_t at = 0; at < own_.size(); at += piece) {
    const std::size_t n = std::min(piece, own_.size() - at);
    transport.all_gather(std::as_bytes(own_.view().subspan(at, n)),
                         std::as_writable_bytes(all.view().first(n * ranks)));
    for (std::size_t i = 0; i < n; ++i) {
      float sum = all[i];
      for (std::size_t r = 1; r < ranks; ++r) sum += all[r * n + i];
      mean_[at + i] = sum * scale;
    }
    bytes_sent_ += (ranks - 1) * n * sizeof(float);
  }
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
