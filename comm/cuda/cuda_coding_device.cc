// CUDA's CodingDevice: queues are streams.
#include <array>

#include "comm/coding_device.h"
#include "core/error.h"
#include "quant/cuda/cuda_codec.h"

namespace lpsgd {
namespace {

struct CudaEvent final : DeviceEvent {
  CudaEvent(Device device, bool timed) : event(device, timed ? Event::Timing::on : Event::Timing::off) {}
  Event event;
};

const Event& event_of(const DeviceEvent& event) {
  return static_cast<const CudaEvent&>(event).event;
}

class CudaJobs final : public JobBatch {
 public:
  CudaJobs(const CodecSpec& codec, Device device, std::span<const CodingJob> jobs, StreamView stream,
           const std::uint32_t* step)
      : batch_(codec, device, jobs), stream_(stream), step_(step) {}
  void encode(const CodingContext& context) override { batch_.encode(context, stream_, step_); }
  void reduce(const CodingContext& context) override { batch_.reduce(context, stream_, step_); }
  void decode(std::size_t first, std::size_t last, float weight) override {
    batch_.decode(first, last, false, stream_, weight);
  }
  void check() override { batch_.check(stream_); }

 private:
  CudaBatch batch_;
  const StreamView stream_;
  const std::uint32_t* const step_;
};

class CudaCodingDevice final : public CodingDevice {
 public:
  CudaCodingDevice(Device device, StreamView compute, StreamView transport)
      : device_(device),
        codec_(device, StreamPriority::high),
        download_(device, StreamPriority::high),
        upload_(device, StreamPriority::high),
        streams_{compute, codec_, download_, upload_, transport},
        step_(device, 1),
        steps_(device, 2) {
    require(compute.device() == device, "the compute stream is another device's");
  }
  ~CudaCodingDevice() override {
    for (const StreamView stream : streams_) {
      try {
        stream.synchronize();
      } catch (const std::exception&) {  // an error of queued work: it has surfaced or will elsewhere
      }
    }
  }
  CudaCodingDevice(const CudaCodingDevice&) = delete;
  CudaCodingDevice& operator=(const CudaCodingDevice&) = delete;

  std::byte* device_memory(std::size_t bytes) override { return memory_.emplace_back(device_, bytes).data(); }
  std::byte* host_memory(std::size_t bytes) override {
    return memory_.emplace_back(device_, bytes, DeviceMemory::Where::pinned_host).data();
  }
  std::unique_ptr<DeviceEvent> make_event(bool timed) override {
    return std::make_unique<CudaEvent>(device_, timed);
  }
  void record(DeviceEvent& event, Queue queue) override {
    static_cast<CudaEvent&>(event).event.record(stream(queue));
  }
  void wait(Queue queue, const DeviceEvent& event) override { stream(queue).wait(event_of(event)); }
  bool done(const DeviceEvent& event) override { return event_of(event).done(); }
  void synchronize(const DeviceEvent& event) override { event_of(event).synchronize(); }
  double seconds(const DeviceEvent& from, const DeviceEvent& to) override {
    return seconds_between(event_of(from), event_of(to));
  }
  void copy(void* to, const void* from, std::size_t bytes, Queue queue) override {
    const ScopedDevice current(device_);
    copy_bytes(to, from, bytes, stream(queue));
  }
  void zero(void* to, std::size_t bytes, Queue queue) override {
    const ScopedDevice current(device_);
    zero_bytes(to, bytes, stream(queue));
  }
  void set_step(std::uint32_t step) override {
    turn_ = 1 - turn_;
    steps_[turn_] = step;
    copy(step_.data(), &steps_[turn_], sizeof step, Queue::compute);
  }
  std::unique_ptr<JobBatch> make_batch(const CodecSpec& codec, std::vector<CodingJob> jobs) override {
    return std::make_unique<CudaJobs>(codec, device_, jobs, codec_, step_.data());
  }
  void transpose(std::span<const Transposition> jobs) override { cuda_transpose(jobs, codec_); }

 private:
  StreamView stream(Queue queue) const { return streams_[static_cast<std::size_t>(queue)]; }

  const Device device_;
  std::vector<DeviceMemory> memory_;
  const Stream codec_, download_, upload_;
  const std::array<StreamView, 5> streams_;  // by Queue
  DeviceBuffer<std::uint32_t> step_;
  PinnedBuffer<std::uint32_t> steps_;  // on their way there, in turn
  std::size_t turn_ = 0;
};

}  // namespace

std::unique_ptr<CodingDevice> make_cuda_coding_device(Device device, StreamView compute,
                                                      StreamView transport) {
  return std::make_unique<CudaCodingDevice>(device, compute, transport);
}

}  // namespace lpsgd
