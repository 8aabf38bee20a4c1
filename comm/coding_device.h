// What the exchange asks of a device that codes: queues that are ordered by events, memory, copies, and the
// codecs over many jobs at once. CUDA's is comm/cuda/cuda_coding_device.cc; the tests have one of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/device.h"
#include "quant/codec.h"
#include "quant/coding_job.h"

namespace lpsgd {

/// A point in a queue's work. Until it is recorded it counts as done.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
};

/// Jobs of one codec, put on the device once. Each call queues one launch for jobs [first, last), or a few
/// where a codec needs several passes.
class JobBatch {
 public:
  virtual ~JobBatch() = default;
  /// `context.step` is what set_step() said.
  virtual void encode(const CodingContext& context) = 0;
  virtual void reduce(const CodingContext& context) = 0;
  /// Times `weight` where the codec is `none`.
  virtual void decode(std::size_t first, std::size_t last, float weight) = 0;
  /// Codec none: looks for values of `out` that are not finite; NaNs become the canonical one.
  virtual void check() = 0;
};

/// The main thread uses Queue::compute, the communication thread the others, as does the main thread while
/// that one rests; both may record and wait at once, but not with the same event. Errors of queued work
/// surface as DeviceError in a later call.
class CodingDevice {
 public:
  enum class Queue : std::uint8_t {
    compute,    // the caller's: writes and reads the gradients
    codec,      // all coding
    download,   // to the host
    upload,     // from the host
    transport,  // of an ordered transport
  };

  /// Waits for everything that is queued.
  virtual ~CodingDevice() = default;

  /// Zeroed memory that lives as long as this object; host memory is page-locked.
  virtual std::byte* device_memory(std::size_t bytes) = 0;
  virtual std::byte* host_memory(std::size_t bytes) = 0;

  virtual std::unique_ptr<DeviceEvent> make_event(bool timed) = 0;
  virtual void record(DeviceEvent& event, Queue queue) = 0;
  /// Work queued from here on starts after what `event` recorded. The host does not wait.
  virtual void wait(Queue queue, const DeviceEvent& event) = 0;
  virtual bool done(const DeviceEvent& event) = 0;
  virtual void synchronize(const DeviceEvent& event) = 0;
  /// Between two timed events that are done.
  virtual double seconds(const DeviceEvent& from, const DeviceEvent& to) = 0;

  virtual void copy(void* to, const void* from, std::size_t bytes, Queue queue) = 0;
  virtual void zero(void* to, std::size_t bytes, Queue queue) = 0;
  /// The number of the step that is coded from here on, queued on Queue::compute: what is coded behind it
  /// reads it there, so that coding can be captured (core/capture.h). The step before the last is done.
  virtual void set_step(std::uint32_t step) = 0;
  /// Its work goes to Queue::codec. What the jobs' `contributions` point to is copied.
  virtual std::unique_ptr<JobBatch> make_batch(const CodecSpec& codec, std::vector<CodingJob> jobs) = 0;
  virtual void transpose(std::span<const Transposition> jobs) = 0;  // on Queue::codec
};

/// CUDA's; `compute` and `transport` are the streams behind these queues. DeviceError where there is none.
std::unique_ptr<CodingDevice> make_cuda_coding_device(Device device, StreamView compute,
                                                      StreamView transport);

}  // namespace lpsgd
