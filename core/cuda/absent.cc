// Replaces runtime.cc in a build without the CUDA backend.
#include "core/cuda/runtime.h"

namespace lpsgd::cuda {
namespace {

constexpr const char* no_backend = "this build has no CUDA backend";

[[noreturn]] void refuse(std::source_location where = std::source_location::current()) {
  throw DeviceError(no_backend, where);
}

}  // namespace

CudaDevices discover() noexcept {
  CudaDevices found;
  found.reason = no_backend;
  return found;
}
CudaDeviceInfo device_info(int) {
  refuse();
}
int current_device() {
  refuse();
}
void set_device(int) {
  refuse();
}
void restore_device(int) noexcept {}

CUstream_st* create_stream(StreamPriority) {
  refuse();
}
void destroy_stream(CUstream_st*) noexcept {}
void synchronize_stream(CUstream_st*) {
  refuse();
}
void stream_wait(CUstream_st*, CUevent_st*) {
  refuse();
}

void begin_capture(CUstream_st*) {
  refuse();
}
void abandon_capture(CUstream_st*) noexcept {}
CUgraphExec_st* end_capture(CUstream_st*) {
  refuse();
}
bool is_capturing(CUstream_st*) {
  refuse();
}
void launch_graph(CUgraphExec_st*, CUstream_st*) {
  refuse();
}
void destroy_graph(CUgraphExec_st*) noexcept {}

CUevent_st* create_event(bool, bool) {
  refuse();
}
void destroy_event(CUevent_st*) noexcept {}
void record_event(CUevent_st*, CUstream_st*, bool) {
  refuse();
}
bool event_done(CUevent_st*) {
  refuse();
}
void synchronize_event(CUevent_st*) {
  refuse();
}
double event_seconds(CUevent_st*, CUevent_st*) {
  refuse();
}

void* allocate_device(std::size_t) {
  refuse();
}
std::size_t free_memory() {
  refuse();
}
void free_device(void*) noexcept {}
void* allocate_pinned(std::size_t) {
  refuse();
}
void free_pinned(void*) noexcept {}
void copy(void*, const void*, std::size_t, CUstream_st*) {
  refuse();
}
void zero(void*, std::size_t, CUstream_st*) {
  refuse();
}

}  // namespace lpsgd::cuda
