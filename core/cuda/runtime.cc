#include "core/cuda/runtime.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdlib>

#include "core/cuda/check.h"

namespace lpsgd {

void throw_cuda_error(cudaError_t status, std::source_location where) {
  cudaGetLastError();  // so that a later check does not report this error again
  throw DeviceError(fmt::format("CUDA: {} ({}) at {}:{}", cudaGetErrorString(status),
                                cudaGetErrorName(status), where.file_name(), where.line()),
                    where);
}

namespace cuda {
namespace {

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// Why cudaGetDeviceCount found no device although the driver's library is installed.
std::string reason_for(cudaError_t status, const CudaDevices& found) {
  if (status == cudaErrorInsufficientDriver)
    return fmt::format("the NVIDIA driver is too old: it supports CUDA {}, this build needs {}",
                       version_text(found.driver_version), version_text(found.runtime_version));
  if (status == cudaErrorNoDevice || status == cudaSuccess) {
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    return visible
               ? fmt::format("the NVIDIA driver shows no device (CUDA_VISIBLE_DEVICES is \"{}\")", visible)
               : std::string("the NVIDIA driver shows no device");
  }
  return fmt::format("the NVIDIA driver does not work: {} ({})", cudaGetErrorString(status),
                     cudaGetErrorName(status));
}

}  // namespace

CudaDevices discover() noexcept {
  CudaDevices found;
  cudaRuntimeGetVersion(&found.runtime_version);
  // Without the driver's library the runtime reports a driver that is too old, so look for it first. It stays
  // open, because the runtime opens it next.
  if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) == nullptr) {
    found.reason = "there is no NVIDIA driver on this machine (libcuda.so.1 was not found)";
    return found;
  }
  cudaDriverGetVersion(&found.driver_version);
  const cudaError_t status = cudaGetDeviceCount(&found.count);
  if (status != cudaSuccess || found.count == 0) {
    cudaGetLastError();
    found.count = 0;
    found.reason = reason_for(status, found);
  }
  return found;
}

CudaDeviceInfo device_info(int index) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index));
  char bus[64] = "";
  check(cudaDeviceGetPCIBusId(bus, sizeof bus, index));
  return {properties.name,
          properties.major,
          properties.minor,
          properties.totalGlobalMem,
          properties.multiProcessorCount,
          bus};
}

int current_device() {
  int index = 0;
  check(cudaGetDevice(&index));
  return index;
}
void set_device(int index) {
  check(cudaSetDevice(index));
}
void restore_device(int index) noexcept {
  cudaSetDevice(index);
}

CUstream_st* create_stream(StreamPriority priority) {
  int lowest = 0, highest = 0;
  check(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                     priority == StreamPriority::high ? highest : lowest));
  return stream;
}
void destroy_stream(CUstream_st* stream) noexcept {
  cudaStreamDestroy(stream);
}
void synchronize_stream(CUstream_st* stream) {
  check(cudaStreamSynchronize(stream));
}
void stream_wait(CUstream_st* stream, CUevent_st* event) {
  check(cudaStreamWaitEvent(stream, event, 0));
}

void begin_capture(CUstream_st* stream) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
}
void abandon_capture(CUstream_st* stream) noexcept {
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(stream, &graph);
  if (graph != nullptr) cudaGraphDestroy(graph);
  cudaGetLastError();
}
CUgraphExec_st* end_capture(CUstream_st* stream) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t made = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&made, graph, cudaGraphInstantiateFlagUseNodePriority);
  cudaGraphDestroy(graph);
  check(status);
  return made;
}
bool is_capturing(CUstream_st* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}
void launch_graph(CUgraphExec_st* graph, CUstream_st* stream) {
  check(cudaGraphLaunch(graph, stream));
}
void destroy_graph(CUgraphExec_st* graph) noexcept {
  cudaGraphExecDestroy(graph);
}

CUevent_st* create_event(bool timing, bool sleeps) {
  cudaEvent_t event = nullptr;
  const unsigned flags = timing ? cudaEventDefault : cudaEventDisableTiming;
  check(cudaEventCreateWithFlags(&event, flags | (sleeps ? cudaEventBlockingSync : cudaEventDefault)));
  return event;
}
void destroy_event(CUevent_st* event) noexcept {
  cudaEventDestroy(event);
}
void record_event(CUevent_st* event, CUstream_st* stream, bool timed) {
  const bool launched = timed && is_capturing(stream);
  check(cudaEventRecordWithFlags(event, stream, launched ? cudaEventRecordExternal : cudaEventRecordDefault));
}
bool event_done(CUevent_st* event) {
  const cudaError_t status = cudaEventQuery(event);
  if (status == cudaErrorNotReady) {
    cudaGetLastError();  // cudaErrorNotReady is no failure: clear it
    return false;
  }
  check(status);
  return true;
}
void synchronize_event(CUevent_st* event) {
  check(cudaEventSynchronize(event));
}
double event_seconds(CUevent_st* begin, CUevent_st* end) {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin, end));
  return milliseconds * 1e-3;
}

void* allocate_device(std::size_t bytes) {
  void* data = nullptr;
  check(cudaMalloc(&data, bytes));
  // Other streams do not wait for this one, so wait here until the memory is zeroed.
  cudaError_t status = cudaMemsetAsync(data, 0, bytes, cudaStreamPerThread);
  if (status == cudaSuccess) status = cudaStreamSynchronize(cudaStreamPerThread);
  if (status != cudaSuccess) {
    cudaFree(data);
    check(status);
  }
  return data;
}
std::size_t free_memory() {
  std::size_t free = 0, all = 0;
  if (cudaMemGetInfo(&free, &all) == cudaSuccess) return free;
  cudaGetLastError();
  return 0;
}
void free_device(void* data) noexcept {
  cudaFree(data);
}
void* allocate_pinned(std::size_t bytes) {
  void* data = nullptr;
  check(cudaHostAlloc(&data, bytes, cudaHostAllocPortable));
  return data;
}
void free_pinned(void* data) noexcept {
  cudaFreeHost(data);
}
void copy(void* to, const void* from, std::size_t bytes, CUstream_st* stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
}
void zero(void* to, std::size_t bytes, CUstream_st* stream) {
  check(cudaMemsetAsync(to, 0, bytes, stream));
}

}  // namespace cuda
}  // namespace lpsgd
