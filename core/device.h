// Devices and their resources: streams, events, device memory and page-locked host memory.
//
// The same types serve both kinds of device. On Device::cpu() work is done at once: a stream is always idle,
// device memory is host memory. On Device::cuda(i) they own CUDA objects. In a build without the CUDA
// backend, using a CUDA device throws DeviceError. cuda_devices() never throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "core/buffer.h"
#include "core/error.h"

struct CUstream_st;  // cudaStream_t and cudaEvent_t, without CUDA's headers
struct CUevent_st;

namespace lpsgd {

enum class DeviceKind : std::uint8_t { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;

  static Device cpu() { return {}; }
  static Device cuda(int index) { return {DeviceKind::cuda, index}; }
  bool is_cuda() const { return kind == DeviceKind::cuda; }
  std::string text() const;  // "cpu", "cuda:0"
  bool operator==(const Device&) const = default;
};

/// What the machine offers. `count` 0 comes with the reason, one clear sentence: no backend in this build, no
/// driver, a driver that is too old, no device.
struct CudaDevices {
  int count = 0;
  std::string reason;
  int driver_version = 0;   // the newest CUDA that the driver supports, 13000 for 13.0; 0: no driver
  int runtime_version = 0;  // the CUDA this program was built with; 0: no backend
};

/// The devices as the first call found them. Never throws, also on a machine without a GPU or a driver.
const CudaDevices& cuda_devices();

/// The version of the installed driver, "580.65.06"; "unknown" if there is no such file to read.
std::string cuda_driver_text();

struct CudaDeviceInfo {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  std::size_t memory = 0;    // bytes
  int multiprocessors = 0;
  std::string bus;  // its address on the machine's PCI bus: "0000:41:00.0"
};
/// DeviceError when there is no such device.
CudaDeviceInfo cuda_device_info(int index);

/// Bytes that are free on a device now, for all processes; 0 if unknown. DeviceError as above.
std::size_t free_device_memory(Device device);

/// Makes `device` the calling thread's current CUDA device for its scope; nothing for the CPU. Only a nested
/// scope restores the device that was current before it: restoring the default, GPU 0, after an outermost
/// scope would create a context on GPU 0 for every rank of the machine.
class ScopedDevice {
 public:
  explicit ScopedDevice(Device device);
  ~ScopedDevice();
  ScopedDevice(const ScopedDevice&) = delete;
  ScopedDevice& operator=(const ScopedDevice&) = delete;

 private:
  bool counted_ = false;
  int before_ = -1;  // -1: nothing to restore
};

class Event;

/// A queue of work on a device, not owned. Cheap to copy; valid as long as its Stream.
class StreamView {
 public:
  StreamView() = default;  // the CPU's
  StreamView(Device device, CUstream_st* handle) : device_(device), handle_(handle) {}
  Device device() const { return device_; }
  CUstream_st* handle() const { return handle_; }
  /// Work queued from here on starts after the point that `event` recorded. The host does not wait.
  void wait(const Event& event) const;
  /// The host waits until the queue is empty. Throws errors of earlier work.
  void synchronize() const;

 private:
  Device device_;
  CUstream_st* handle_ = nullptr;
};

enum class StreamPriority : std::uint8_t { normal, high };

/// Owns a stream, which does not wait for CUDA's default stream.
class Stream {
 public:
  explicit Stream(Device device, StreamPriority priority = StreamPriority::normal);
  ~Stream();
  Stream(Stream&& other) noexcept : view_(std::exchange(other.view_, {})) {}
  Stream& operator=(Stream&& other) noexcept;
  StreamView view() const { return view_; }
  operator StreamView() const { return view_; }  // NOLINT(google-explicit-constructor)
  void wait(const Event& event) const { view_.wait(event); }
  void synchronize() const { view_.synchronize(); }

 private:
  StreamView view_;
};

/// A point in a stream's work. Until it is recorded it counts as done.
class Event {
 public:
  enum class Timing : std::uint8_t { off, on };
  /// How synchronize() waits for a GPU. `spin` ends sooner and uses a processor core meanwhile.
  enum class Wait : std::uint8_t { spin, sleep };
  explicit Event(Device device, Timing timing = Timing::off, Wait wait = Wait::spin);
  ~Event();
  Event(Event&& other) noexcept
      : device_(other.device_),
        timed_(other.timed_),
        handle_(std::exchange(other.handle_, nullptr)),
        when_(other.when_) {}
  Event& operator=(Event&& other) noexcept;
  /// If the stream is being captured, see core/capture.h.
  void record(StreamView stream);
  bool done() const;
  void synchronize() const;
  Device device() const { return device_; }
  CUevent_st* handle() const { return handle_; }
  /// Seconds on the device from `begin` to `end`, both recorded and done, both made with Timing::on.
  friend double seconds_between(const Event& begin, const Event& end);

 private:
  Device device_;
  bool timed_ = false;
  CUevent_st* handle_ = nullptr;
  double when_ = 0;  // of the CPU's
};

/// Owns bytes on a device, or page-locked bytes on the host that a device can copy from and to while the host
/// continues. Zeroed. Moves, never copies.
class DeviceMemory {
 public:
  enum class Where : std::uint8_t { device, pinned_host };
  DeviceMemory() = default;
  DeviceMemory(Device device, std::size_t bytes, Where where = Where::device);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }

 private:
  void release() noexcept;
  Device device_;
  Where where_ = Where::device;
  Buffer<std::byte> host_;  // of the CPU
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Bytes that this process's DeviceMemory has on a device (page-locked memory of the host does not count),
/// now and at most since the program started or since reset_device_memory_peak(). What libraries take for
/// themselves is not in it.
struct DeviceMemoryUse {
  std::size_t current = 0, peak = 0;
};
DeviceMemoryUse device_memory_use(Device device);
void reset_device_memory_peak(Device device);

/// Owns `size` values of T in a device's memory. A span of it is device memory: the host must not read it
/// unless the device is the CPU.
template <class T>
class DeviceBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  DeviceBuffer() = default;
  DeviceBuffer(Device device, std::size_t size) : memory_(device, size * sizeof(T)), size_(size) {}
  T* data() { return reinterpret_cast<T*>(memory_.data()); }
  const T* data() const { return reinterpret_cast<const T*>(memory_.data()); }
  std::size_t size() const { return size_; }
  Device device() const { return memory_.device(); }
  std::span<T> view() { return {data(), size_}; }
  std::span<const T> view() const { return {data(), size_}; }

 private:
  DeviceMemory memory_;
  std::size_t size_ = 0;
};

/// Owns `size` values of T in page-locked host memory, for copies to and from `device`.
template <class T>
class PinnedBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  PinnedBuffer() = default;
  PinnedBuffer(Device device, std::size_t size)
      : memory_(device, size * sizeof(T), DeviceMemory::Where::pinned_host), size_(size) {}
  T* data() { return reinterpret_cast<T*>(memory_.data()); }
  const T* data() const { return reinterpret_cast<const T*>(memory_.data()); }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return data()[i]; }
  const T& operator[](std::size_t i) const { return data()[i]; }
  std::span<T> view() { return {data(), size_}; }
  std::span<const T> view() const { return {data(), size_}; }

 private:
  DeviceMemory memory_;
  std::size_t size_ = 0;
};

/// Queues a copy on `stream`; the addresses give the direction. The call may return before the copy is done,
/// but with host memory that is not page-locked it waits.
void copy_bytes(void* to, const void* from, std::size_t bytes, StreamView stream);
/// Queues zeroing.
void zero_bytes(void* to, std::size_t bytes, StreamView stream);

/// Queues a copy between views of equal size.
template <class T>
void copy_values(std::span<T> to, std::span<const std::type_identity_t<T>> from, StreamView stream) {
  require(to.size() == from.size(), "copy between views of different sizes");
  copy_bytes(to.data(), from.data(), from.size_bytes(), stream);
}

}  // namespace lpsgd
