// CUDA's runtime as lpsgd uses it, without memory: errors, devices, streams, events and graphs.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
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
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
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
  *stream = make_stream();
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::lock_guard lock(machine().mutex);
  drain(stream_of(stream));
  std::erase(machine().streams, stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return synchronize(stream);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::lock_guard lock(machine().mutex);
  CUstream_st& s = stream_of(stream);
  const std::shared_ptr<Marker> marker = event->last;
  if (!marker) return cudaSuccess;
  if (!marker->capture) {
    if (invalidate_capture(s)) return fail(cudaErrorStreamCaptureIsolation);
    return marker->done ? cudaSuccess : push(s, {.waits_for = marker});
  }
  if (marker->capture->graph == nullptr) return fail(cudaErrorCapturedEvent);
  if (!s.capture) {  // the stream joins the capture
    s.capture = marker->capture;
    s.branch = s.capture->branches.size();
    s.capture->branches.push_back({&s, 0, {}});
    s.capture->graph->branches = s.capture->branches.size();
  }
  if (s.capture != marker->capture) return invalidate_capture(s), fail(cudaErrorStreamCaptureIsolation);
  for (Capture::Branch& branch : s.capture->branches) branch.follows.resize(s.capture->branches.size());
  std::vector<std::size_t>& follows = s.capture->branches[s.branch].follows;
  for (std::size_t b = 0; b < marker->follows.size(); ++b)
    follows[b] = std::max(follows[b], marker->follows[b]);
  return push(s, {.waits_for = marker});
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  const std::lock_guard lock(machine().mutex);
  *event = new CUevent_st;
  machine().events.insert(*event);
  (*event)->device = current_device;
  (*event)->timed = (flags & cudaEventDisableTiming) == 0;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::lock_guard lock(machine().mutex);
  machine().events.erase(event);
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard lock(machine().mutex);
  CUstream_st& s = stream_of(stream);
  if (event->device != s.device) return fail(cudaErrorInvalidResourceHandle);
  event->last = std::make_shared<Marker>(&s);
  if (s.capture) {
    event->last->capture = s.capture;
    event->last->follows = s.capture->branches[s.branch].follows;
  }
  return push(s, {.marks = event->last});
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  if (flags != cudaEventRecordExternal) return cudaEventRecord(event, stream);
  const std::lock_guard lock(machine().mutex);
  CUstream_st& s = stream_of(stream);
  if (event->device != s.device) return fail(cudaErrorInvalidResourceHandle);
  return s.capture ? push(s, {.event = event}) : fail(cudaErrorInvalidValue);
}

namespace {
bool is_captured(const CUevent_st& event) {
  return event.last && event.last->capture;
}
}  // namespace

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard lock(machine().mutex);
  if (invalidate_own_capture()) return fail(cudaErrorStreamCaptureUnsupported);
  if (is_captured(*event)) return fail(cudaErrorCapturedEvent);
  if (std::getenv("LPSGD_EMULATED_FAILURE") != nullptr) return fail(cudaErrorLaunchFailure);
  if (!event->last || event->last->done) return cudaSuccess;
  // Each query advances the work, so that a loop of queries ends.
  if (machine().random_delays) {
    pass_time(16);
  } else {
    const WorkScope scope;
    run_next(*event->last->stream);
  }
  return event->last->done ? cudaSuccess : fail(cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const std::lock_guard lock(machine().mutex);
  if (invalidate_own_capture()) return fail(cudaErrorStreamCaptureUnsupported);
  if (is_captured(*event)) return fail(cudaErrorCapturedEvent);
  if (event->last) run_until(*event->last);
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
  CUstream_st& s = stream_of(stream);
  if (s.capture) return fail(cudaErrorInvalidValue);
  s.capture = std::make_shared<Capture>();
  s.capture->graph = new CUgraph_st;
  s.capture->branches.push_back({&s, 0, {0}});
  s.branch = 0;
  own_capture = &s;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(machine().mutex);
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = stream_of(stream).capture;
  if (!capture || capture->branches[0].stream != stream) return fail(cudaErrorInvalidValue);
  own_capture = nullptr;
  bool joined = true;
  for (std::size_t b = 0; b < capture->branches.size(); ++b) {
    const std::vector<std::size_t>& follows = capture->branches[0].follows;
    joined &= (b < follows.size() ? follows[b] : 0) == capture->branches[b].tasks;
    capture->branches[b].stream->capture.reset();
  }
  *graph = std::exchange(capture->graph, nullptr);
  if (joined && !capture->invalidated) return cudaSuccess;
  delete std::exchange(*graph, nullptr);
  return fail(capture->invalidated ? cudaErrorStreamCaptureInvalidated : cudaErrorStreamCaptureUnjoined);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = is_captured(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  const std::lock_guard lock(machine().mutex);
  *made = new CUgraphExec_st{*graph, {nullptr}};
  while ((*made)->streams.size() < graph->branches) (*made)->streams.push_back(make_stream());
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  const std::lock_guard lock(machine().mutex);
  graph->streams[0] = &stream_of(stream);
  if (invalidate_capture(*graph->streams[0]))
    return fail(cudaErrorStreamCaptureUnsupported);          // nested graphs
  std::map<const Marker*, std::shared_ptr<Marker>> markers;  // of this launch, by those captured
  std::vector<std::shared_ptr<Marker>> eager;
  for (const auto& [branch, captured] : graph->graph.nodes) {
    Task task = captured;
    CUstream_st* const on = graph->streams[branch];
    if (task.waits_for) task.waits_for = markers.at(task.waits_for.get());
    if (task.marks) task.marks = markers[task.marks.get()] = std::make_shared<Marker>(on);
    if (task.eager) eager.push_back(task.marks = std::make_shared<Marker>(on));
    push(*on, std::move(task));
  }
  for (const auto& marker : eager) run_until(*marker);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  const std::lock_guard lock(machine().mutex);
  for (std::size_t b = 1; b < graph->streams.size(); ++b) {
    if (!graph->streams[b]->tasks.empty()) continue;  // its work still runs
    std::erase(machine().streams, graph->streams[b]);
    delete graph->streams[b];
  }
  delete graph;
  return cudaSuccess;
}
