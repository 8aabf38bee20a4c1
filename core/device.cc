#include "core/device.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <sstream>

#include "core/clock.h"
#include "core/cuda/runtime.h"

namespace lpsgd {
namespace {

thread_local int scopes_of_this_thread = 0;

/// DeviceMemory of the CPU, then of each GPU; those from the 64th on count together.
struct MemoryCounter {
  std::atomic<std::size_t> current{0}, peak{0};

  void add(std::size_t bytes) {
    const std::size_t now = current.fetch_add(bytes) + bytes;
    for (std::size_t most = peak; most < now && !peak.compare_exchange_weak(most, now);) {
    }
  }
};
std::array<MemoryCounter, 65> memory_counters;

MemoryCounter& memory_counter(Device device) {
  const std::size_t slot = device.is_cuda() ? 1 + static_cast<std::size_t>(device.index) : 0;
  return memory_counters[std::min(slot, memory_counters.size() - 1)];
}

void require_cuda(Device device) {
  const CudaDevices& found = cuda_devices();
  if (found.count == 0) throw DeviceError(fmt::format("{} cannot be used: {}", device.text(), found.reason));
  if (device.index < 0 || device.index >= found.count)
    throw DeviceError(fmt::format("{} cannot be used: this machine has {} CUDA device{}", device.text(),
                                  found.count, found.count == 1 ? "" : "s"));
}

}  // namespace

std::string Device::text() const {
  return is_cuda() ? fmt::format("cuda:{}", index) : "cpu";
}

const CudaDevices& cuda_devices() {
  static const CudaDevices found = cuda::discover();
  return found;
}

// From "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 ..."
std::string cuda_driver_text() {
  std::ifstream in("/proc/driver/nvidia/version");
  std::string line;
  while (std::getline(in, line) && !line.starts_with("NVRM version")) {
  }
  std::istringstream words(line);
  for (std::string word; words >> word;)
    if (word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos)
      return word;
  return "unknown";
}

CudaDeviceInfo cuda_device_info(int index) {
  require_cuda(Device::cuda(index));
  return cuda::device_info(index);
}

std::size_t free_device_memory(Device device) {
  require_cuda(device);
  const ScopedDevice scope(device);
  return cuda::free_memory();
}

ScopedDevice::ScopedDevice(Device device) {
  if (!device.is_cuda()) return;
  require_cuda(device);
  const int before = cuda::current_device();
  if (before != device.index) {
    cuda::set_device(device.index);
    if (scopes_of_this_thread > 0) before_ = before;
  }
  counted_ = true;
  ++scopes_of_this_thread;
}
ScopedDevice::~ScopedDevice() {
  if (before_ >= 0) cuda::restore_device(before_);
  if (counted_) --scopes_of_this_thread;
}

void StreamView::wait(const Event& event) const {
  if (!device_.is_cuda()) {
    event.synchronize();
  } else if (event.device().is_cuda()) {  // the CPU's events are done when they are recorded
    const ScopedDevice scope(device_);
    cuda::stream_wait(handle_, event.handle());
  }
}
void StreamView::synchronize() const {
  if (device_.is_cuda()) cuda::synchronize_stream(handle_);
}

Stream::Stream(Device device, StreamPriority priority) : view_(device, nullptr) {
  if (!device.is_cuda()) return;
  const ScopedDevice scope(device);
  view_ = StreamView(device, cuda::create_stream(priority));
}
Stream::~Stream() {
  if (view_.handle() != nullptr) cuda::destroy_stream(view_.handle());
}
Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(view_, other.view_);
  return *this;
}

Event::Event(Device device, Timing timing, Wait wait) : device_(device), timed_(timing == Timing::on) {
  if (!device.is_cuda()) return;
  const ScopedDevice scope(device);
  handle_ = cuda::create_event(timed_, wait == Wait::sleep);
}
Event::~Event() {
  if (handle_ != nullptr) cuda::destroy_event(handle_);
}
Event& Event::operator=(Event&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(timed_, other.timed_);
  std::swap(handle_, other.handle_);
  std::swap(when_, other.when_);
  return *this;
}
void Event::record(StreamView stream) {
  require(stream.device() == device_, "an event is recorded on a stream of another device");
  if (device_.is_cuda()) {
    const ScopedDevice scope(device_);
    cuda::record_event(handle_, stream.handle(), timed_);
  } else {
    when_ = now_seconds();
  }
}
bool Event::done() const {
  return !device_.is_cuda() || cuda::event_done(handle_);
}
void Event::synchronize() const {
  if (device_.is_cuda()) cuda::synchronize_event(handle_);
}
double seconds_between(const Event& begin, const Event& end) {
  require(begin.device_ == end.device_, "events of two devices have no common clock");
  return begin.device_.is_cuda() ? cuda::event_seconds(begin.handle_, end.handle_) : end.when_ - begin.when_;
}

DeviceMemory::DeviceMemory(Device device, std::size_t bytes, Where where)
    : device_(device), where_(where), bytes_(bytes) {
  const ScopedDevice scope(device);
  if (bytes == 0) return;
  try {
    if (device.is_cuda()) {
      data_ = static_cast<std::byte*>(where == Where::device ? cuda::allocate_device(bytes)
                                                             : cuda::allocate_pinned(bytes));
    } else {
      host_ = Buffer<std::byte>(bytes);
      data_ = host_.data();
    }
  } catch (const std::exception& e) {
    const bool on_device = device.is_cuda() && where == Where::device;
    throw DeviceError(fmt::format("{}: no room for {} bytes of {}{}: {}", device.text(), bytes,
                                  !device.is_cuda()        ? "memory"
                                  : where == Where::device ? "device memory"
                                                           : "page-locked memory",
                                  on_device ? fmt::format(" ({} are free)", cuda::free_memory()) : "",
                                  e.what()));
  }
  if (device.is_cuda() && where == Where::pinned_host) std::memset(data_, 0, bytes);
  if (where == Where::device) memory_counter(device).add(bytes);
}
DeviceMemory::~DeviceMemory() {
  release();
}
DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : device_(other.device_),
      where_(other.where_),
      host_(std::move(other.host_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}
DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  if (this != &other) {
    release();
    device_ = other.device_;
    where_ = other.where_;
    host_ = std::move(other.host_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}
void DeviceMemory::release() noexcept {
  if (data_ == nullptr) return;
  if (where_ == Where::device) memory_counter(device_).current -= bytes_;
  if (!device_.is_cuda()) return;
  if (where_ == Where::device)
    cuda::free_device(data_);
  else
    cuda::free_pinned(data_);
  data_ = nullptr;
}

DeviceMemoryUse device_memory_use(Device device) {
  const MemoryCounter& counter = memory_counter(device);
  return {counter.current, counter.peak};
}
void reset_device_memory_peak(Device device) {
  MemoryCounter& counter = memory_counter(device);
  counter.peak = counter.current.load();
}

void copy_bytes(void* to, const void* from, std::size_t bytes, StreamView stream) {
  if (bytes == 0) return;
  const ScopedDevice scope(stream.device());
  if (stream.device().is_cuda())
    cuda::copy(to, from, bytes, stream.handle());
  else
    std::memcpy(to, from, bytes);
}
void zero_bytes(void* to, std::size_t bytes, StreamView stream) {
  if (bytes == 0) return;
  const ScopedDevice scope(stream.device());
  if (stream.device().is_cuda())
    cuda::zero(to, bytes, stream.handle());
  else
    std::memset(to, 0, bytes);
}

}  // namespace lpsgd
