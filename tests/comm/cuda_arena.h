// Gradients on a CUDA device; on Device::cpu() with kernels that run on the CPU
// (tests/quant/emulated_cuda.h).
#pragma once

#include "comm/coding_device.h"
#include "core/device.h"
#include "tests/comm/exchange_cases.h"

namespace lpsgd {

class CudaArena final : public exchange_cases::Arena {
 public:
  CudaArena(Device device, const Transport& transport, std::size_t size)
      : device_(device), compute_(device), values_(device, size) {
    if (!device.is_cuda()) emulated_ = make_cuda_coding_device(device, compute_, transport.stream());
  }
  std::span<float> values() override { return values_.view(); }
  ExchangeOptions adapt(ExchangeOptions options) override {
    options.device = device_;
    options.compute = compute_;
    options.coding_device = emulated_.get();
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
  std::unique_ptr<CodingDevice> emulated_;
};

}  // namespace lpsgd
