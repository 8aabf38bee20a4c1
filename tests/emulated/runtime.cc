// CUDA's runtime as lpsgd uses it, but memory: errors, devices, streams, events and graphs.
#include <cstdio>
#include <cstring>
#include <utility>

#include "tests/emulated/machine.h"
#include "tests/emulated/streams.h"

using namespace lpsgd::emulated;

// ---- Errors

namespace {

struct ErrorText {
  cudaError_t error;
  const char *name, *text;
};
constexpr ErrorText error_texts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
};
ErrorText describe(cudaError_t error) {
  for (const ErrorText& known : error_texts)
    if (known.error == error) return known;
  return {error, "cudaErrorUnknown", "unknown error"};
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
  return describe(error).name;
}
const char* cudaGetErrorString(cudaError_t error) {
  return describe(error).text;
}
cudaError_t cudaGetLastError() {
  return last();
}

// ---- Devices

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  return cudaRuntimeGetVersion(version);
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = machine().devices;
  return *count > 0 ? cudaSuccess : fail(cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int index) {
  if (index < 0 || index >= machine().devices) return fail(cudaErrorInvalidDevice);
  current_device = index;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* index) {
  *index = current_device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
  if (index < 0 || index >= machine().devices) return fail(cudaErrorInvalidDevice);
  *properties = {};
  std::strcpy(properties->name, "a GPU that the CPU emulates");
  properties->major = 9;
  properties->totalGlobalMem = machine().memory;
  properties->multiProcessorCount = 4;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int index) {
  if (index < 0 || index >= machine().devices) return fail(cudaErrorInvalidDevice);
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0", index);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = 0;
  *highest = -5;
  return cudaSuccess;
}

// ---- Streams and events

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  const std::lock_guard lock(machine().mutex);
  *stream = new CUstream_st;
  (*stream)->device = current_device;
  machine().streams.insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::lock_guard lock(machine().mutex);
  drain(of(stream));
  machine().streams.erase(stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return finish(stream);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::lock_guard lock(machine().mutex);
  CUstream_st& s = of(stream);
  if (!event->last) return cudaSuccess;
  if (spoils(s)) return fail(cudaErrorStreamCaptureIsolation);  // what is recorded stands alone
  if (event->last->done) return cudaSuccess;
  return push(s, {.waits = event->last});
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st;
  (*event)->device = current_device;
  (*event)->timed = (flags & cudaEventDisableTiming) == 0;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard lock(machine().mutex);
  CUstream_st& s = of(stream);
  if (event->device != s.device) return fail(cudaErrorInvalidResourceHandle);
  if (spoils(s)) return fail(cudaErrorStreamCaptureUnsupported);
  event->last = std::make_shared<Mark>(&s);
  return push(s, {.marks = event->last});
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard lock(machine().mutex);
  if (spoils_own()) return fail(cudaErrorStreamCaptureUnsupported);
  if (!event->last || event->last->done) return cudaSuccess;
  // Time passes: who asks again and again gets there.
  const Inside inside;
  step(*event->last->stream);
  return event->last->done ? cudaSuccess : fail(cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const std::lock_guard lock(machine().mutex);
  if (spoils_own()) return fail(cudaErrorStreamCaptureUnsupported);
  if (event->last) reach(*event->last);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const std::lock_guard lock(machine().mutex);
  if (!begin->timed || !end->timed || !begin->last || !end->last) return fail(cudaErrorInvalidValue);
  if (!begin->last->done || !end->last->done) return cudaErrorNotReady;
  *milliseconds = static_cast<float>((end->last->when - begin->last->when) * 1e3);
  return cudaSuccess;
}

// ---- Graphs

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const std::lock_guard lock(machine().mutex);
  CUstream_st& s = of(stream);
  if (s.recorded != nullptr) return fail(cudaErrorInvalidValue);
  s.recorded = new CUgraph_st;
  own_recording = &s;
  s.spoiled = false;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(machine().mutex);
  CUstream_st& s = of(stream);
  *graph = std::exchange(s.recorded, nullptr);
  own_recording = nullptr;
  if (*graph == nullptr) return fail(cudaErrorInvalidValue);
  if (!std::exchange(s.spoiled, false)) return cudaSuccess;
  delete std::exchange(*graph, nullptr);
  return fail(cudaErrorStreamCaptureInvalidated);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  *made = new CUgraphExec_st{graph->tasks};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  const std::lock_guard lock(machine().mutex);
  CUstream_st& s = of(stream);
  for (const Task& task : graph->tasks) push(s, task);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph;
  return cudaSuccess;
}
