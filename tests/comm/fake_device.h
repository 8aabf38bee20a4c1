// A device made of threads: each queue is one that works off its own work in order, late and at uneven times,
// and codes on the CPU. What is not ordered by events goes wrong here, too.
#pragma once

#include <functional>
#include <memory>

#include "comm/coding_device.h"
#include "comm/transport.h"

namespace lpsgd {

class FakeDevice final : public CodingDevice {
 public:
  /// `seed` of the delays before each piece of work; 0: none.
  explicit FakeDevice(std::uint32_t seed);
  ~FakeDevice() override;
  FakeDevice(const FakeDevice&) = delete;
  FakeDevice& operator=(const FakeDevice&) = delete;

  std::byte* device_memory(std::size_t bytes) override;
  std::byte* host_memory(std::size_t bytes) override;
  std::unique_ptr<DeviceEvent> make_event(bool timed) override;
  void record(DeviceEvent& event, Queue queue) override;
  void wait(Queue queue, const DeviceEvent& event) override;
  bool done(const DeviceEvent& event) override;
  void synchronize(const DeviceEvent& event) override;
  double seconds(const DeviceEvent& from, const DeviceEvent& to) override;
  void copy(void* to, const void* from, std::size_t bytes, Queue queue) override;
  void zero(void* to, std::size_t bytes, Queue queue) override;
  void set_step(std::uint32_t step) override;
  std::unique_ptr<JobBatch> make_batch(const CodecSpec& codec, std::vector<CodingJob> jobs) override;
  void transpose(std::span<const Transposition> jobs) override;

  /// The step's number as work on the queues finds it.
  const std::uint32_t& step() const;
  /// Queues any work.
  void run(Queue queue, std::function<void()> work);
  /// Waits until the queue is empty.
  void drain(Queue queue);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A transport whose operations run in order on the device's transport queue, as NCCL's do on a stream. It
/// allows what NCCL allows: groups of messages that name each pair of ranks at most once in a direction.
std::unique_ptr<Transport> make_ordered_transport(Transport& inner, FakeDevice& device);

}  // namespace lpsgd
