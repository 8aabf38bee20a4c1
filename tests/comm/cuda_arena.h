// Gradients on a CUDA device.
#pragma once

#include "core/device.h"
#include "tests/comm/exchange_cases.h"

namespace lpsgd {

class CudaArena final : public exchange_cases::Arena {
 public:
  CudaArena(Device device, std::size_t size) : device_(device), compute_(device), values_(device, size) {}
  std::span<float> values() override { return values_.view(); }
  ExchangeOptions adapt(ExchangeOptions options) override {
    options.device = device_;
    options.compute = compute_;
    return options;
  }
  void write(const float* values, std::int64_t first, std::int64_t n) override {
    copy_bytes(values_.data() + first, values, static_cast<std::size_t>(n) * sizeof(float), compute_);
  }
  std::vector<float> read() override {
    std::vector<float> host(values_.size());
    copy_bytes(host.data(), values_.data(), host.size() * sizeof(float), compute_);
    compute_.synchronize();
    return host;
  }

 private:
  const Device device_;
  const Stream compute_;
  DeviceBuffer<float> values_;
};

}  // namespace lpsgd
