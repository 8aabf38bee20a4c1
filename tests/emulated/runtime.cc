// CUDA's runtime as lpsgd uses it: memory, streams, events, graphs.
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tests/emulated/machine.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes)
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes)
#endif

/// One recording of an event: later ones do not change what waits for this one.
struct Mark {
  CUstream_st* stream = nullptr;
  bool done = false;
  double when = 0;
};

struct CUevent_st {
  std::shared_ptr<Mark> last;  // null: never recorded, which counts as done
  bool timed = false;
};

struct Task {
  std::function<void()> work = {};
  std::shared_ptr<Mark> waits = {}, marks = {};
  std::vector<std::int64_t> same = {};
  CUevent_st* external = nullptr;  // of a graph: recorded anew by each launch
};

struct CUgraph_st {
  std::vector<Task> tasks;
};
struct CUgraphExec_st {
  std::vector<Task> tasks;
};

struct CUstream_st {
  std::deque<Task> tasks;
  CUgraph_st* recorded = nullptr;  // not null: what comes is recorded
  bool spoiled = false;            // by a call that no recording allows
};

namespace lpsgd::emulated {
namespace {

constexpr std::size_t page = 4096, large = std::size_t{1} << 20, reserved = std::size_t{1} << 36;

std::size_t number(const char* name, std::size_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

/// Whole pages, and one behind them that nobody has.
std::size_t taken_by(std::size_t bytes) {
  return (bytes + page - 1) / page * page + page;
}

struct Machine {
  std::recursive_mutex mutex;
  std::set<CUstream_st*> streams;
  std::map<const std::byte*, std::size_t> device, pinned;  // bytes by address
  std::byte* region = nullptr;                             // of all device memory
  std::size_t region_used = 0, used = 0;
  const std::size_t memory = number("LPSGD_EMULATED_MEMORY", std::size_t{4} << 30);
  const int devices = static_cast<int>(number("LPSGD_EMULATED_GPUS", 1));
  int inside = 0;     // depth of calls that do work
  bool open = false;  // device memory can be read
  std::vector<std::int64_t> last_work;
  const bool random = std::getenv("LPSGD_EMULATED_ORDER") != nullptr;
  std::minstd_rand draw{static_cast<unsigned>(number("LPSGD_EMULATED_ORDER", 1))};

  /// New addresses for long, so that a late use is not another's memory, then the first gap.
  std::byte* place(std::size_t bytes) {
    constexpr std::size_t fresh = std::size_t{8} << 20;
    std::byte* at = region;
    if (region_used > fresh)
      for (const auto& [begin, size] : device) {
        if (static_cast<std::size_t>(begin - at) >= taken_by(bytes)) return at;
        at = region + (begin - region) + taken_by(size);
      }
    at = region_used > fresh ? at : region + region_used;
    region_used = std::max(region_used, static_cast<std::size_t>(at - region) + taken_by(bytes));
    return at;
  }
};
Machine& machine() {
  static auto* const the = new Machine;  // outlives what is released at exit
  return *the;
}

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;

/// Device memory is there for the host's instructions within its scope only.
class Inside {
 public:
  Inside() { ++machine().inside; }
  ~Inside() {
    if (--machine().inside == 0 && std::exchange(machine().open, false)) protect(PROT_NONE);
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  /// Before work of a scope that touches it.
  static void open() {
    if (!std::exchange(machine().open, true)) protect(PROT_READ | PROT_WRITE);
  }

 private:
  static void protect(int rights) {
    const Machine& m = machine();
    if (m.region_used > 0 && mprotect(m.region, m.region_used, rights) != 0) undefined("mprotect failed");
  }
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void reach(const Mark& mark);

/// Does the first task of a stream.
void step(CUstream_st& stream) {
  const Task task = std::move(stream.tasks.front());
  stream.tasks.pop_front();
  if (task.waits) reach(*task.waits);
  if (task.work) {
    std::vector<std::int64_t>& last = machine().last_work;
    Inside::open();
    if (task.same.empty() || task.same != last) task.work();
    last = task.same;
  }
  if (task.marks) {
    task.marks->when = now();
    task.marks->done = true;
  }
}

void reach(const Mark& mark) {
  const Inside inside;
  while (!mark.done) {
    if (mark.stream->tasks.empty()) undefined("a stream waits for work that nobody will do");
    step(*mark.stream);
  }
}

CUstream_st& of(cudaStream_t stream) {
  static thread_local CUstream_st per_thread;
  if (stream == cudaStreamPerThread) return per_thread;
  if (!machine().streams.contains(stream)) undefined("work for CUDA's default stream, or for none");
  return *stream;
}

void drain(CUstream_st& stream) {
  const Inside inside;
  while (!stream.tasks.empty()) step(stream);
}
void drain_all() {
  for (CUstream_st* s : machine().streams) drain(*s);
}

cudaError_t push(CUstream_st& stream, Task task) {
  if (stream.recorded != nullptr) {
    stream.recorded->tasks.push_back(std::move(task));
    return cudaSuccess;
  }
  stream.tasks.push_back(std::move(task));
  Machine& m = machine();
  if (!m.random) return cudaSuccess;
  for (CUstream_st* s : m.streams) {
    const Inside inside;
    for (std::size_t n = m.draw() % 4; n > 0 && !s->tasks.empty(); --n) step(*s);
  }
  return cudaSuccess;
}

/// Calls that a recording does not allow, on its stream or, as they may wait, from its thread.
bool spoils(CUstream_st& stream) {
  if (stream.recorded != nullptr) stream.spoiled = true;
  return stream.spoiled;
}
bool any_recorded() {
  for (CUstream_st* s : machine().streams)
    if (s->recorded != nullptr) return spoils(*s);
  return false;
}

bool holds(const std::map<const std::byte*, std::size_t>& ranges, const void* at, std::size_t bytes) {
  const auto* p = static_cast<const std::byte*>(at);
  auto next = ranges.upper_bound(p);
  if (next == ranges.begin()) return false;
  const auto& [begin, size] = *--next;
  return p + bytes <= begin + size;
}
bool in_region(const void* at) {
  const auto* p = static_cast<const std::byte*>(at);
  return machine().region != nullptr && p >= machine().region && p < machine().region + reserved;
}

}  // namespace

void undefined(const char* what) {
  std::fprintf(stderr, "emulated GPU: %s\n", what);
  std::abort();
}

cudaError_t fail(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

cudaError_t queue(cudaStream_t stream, std::function<void()> work, std::vector<std::int64_t> same) {
  const std::lock_guard lock(machine().mutex);
  return push(of(stream), {.work = std::move(work), .same = std::move(same)});
}

cudaError_t finish(cudaStream_t stream) {
  const std::lock_guard lock(machine().mutex);
  CUstream_st& s = of(stream);
  if (spoils(s)) return fail(cudaErrorStreamCaptureUnsupported);
  drain(s);
  return cudaSuccess;
}

bool is_recorded(cudaStream_t stream) {
  const std::lock_guard lock(machine().mutex);
  return of(stream).recorded != nullptr;
}

bool is_device_memory(const void* at, std::size_t bytes) {
  const std::lock_guard lock(machine().mutex);
  return holds(machine().device, at, bytes);
}

}  // namespace lpsgd::emulated

using namespace lpsgd::emulated;

// ---- Errors

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
    default:
      return "cudaErrorUnknown";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    default:
      return "unknown error";
  }
}
cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
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

// ---- Memory

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  if (any_recorded()) return fail(cudaErrorStreamCaptureUnsupported);
  if (bytes == 0) {
    *data = nullptr;
    return cudaSuccess;
  }
  if (bytes > m.memory - m.used || m.region_used + bytes + 2 * page > reserved)
    return fail(cudaErrorMemoryAllocation);
  if (m.region == nullptr) {
    void* all = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) return fail(cudaErrorMemoryAllocation);
    m.region = static_cast<std::byte*>(all);
  }
  std::byte* const at = m.place(bytes);
  m.used += bytes;
  m.device[at] = bytes;
  ASAN_UNPOISON_MEMORY_REGION(at, bytes);
  ASAN_POISON_MEMORY_REGION(at + bytes, taken_by(bytes) - bytes);
  if (bytes <= large) {
    const Inside inside;
    Inside::open();
    std::memset(at, 0xff, bytes);  // a NaN of every type
  }
  *data = at;
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  if (data == nullptr) return cudaSuccess;
  const auto found = m.device.find(static_cast<std::byte*>(data));
  if (found == m.device.end()) return fail(cudaErrorInvalidValue);
  drain_all();
  madvise(data, (found->second + page - 1) / page * page, MADV_DONTNEED);
  ASAN_POISON_MEMORY_REGION(data, found->second);
  m.used -= found->second;
  m.device.erase(found);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* all) {
  const std::lock_guard lock(machine().mutex);
  *all = machine().memory;
  *free = machine().memory - machine().used;
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned) {
  const std::lock_guard lock(machine().mutex);
  if (any_recorded()) return fail(cudaErrorStreamCaptureUnsupported);
  *data = std::malloc(bytes);
  if (*data == nullptr) return fail(cudaErrorMemoryAllocation);
  machine().pinned[static_cast<std::byte*>(*data)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) {
  const std::lock_guard lock(machine().mutex);
  drain_all();
  machine().pinned.erase(static_cast<std::byte*>(data));
  std::free(data);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  CUstream_st& s = of(stream);
  if (bytes == 0) return cudaSuccess;
  for (const void* end : {static_cast<const void*>(to), from})
    if (in_region(end) && !holds(m.device, end, bytes)) return fail(cudaErrorInvalidValue);
  const auto pageable = [&](const void* p) { return !in_region(p) && !holds(m.pinned, p, bytes); };
  if ((pageable(to) || pageable(from)) && spoils(s)) return fail(cudaErrorStreamCaptureUnsupported);
  // The host may change what is pageable once the call is back, and what is page-locked once it is copied.
  if (pageable(from)) {
    const auto* first = static_cast<const std::byte*>(from);
    push(s, {.work = [to, kept = std::vector<std::byte>(first, first + bytes)] {
           std::memcpy(to, kept.data(), kept.size());
         }});
  } else {
    push(s, {.work = [=] { std::memmove(to, from, bytes); }});
  }
  if (pageable(to)) drain(s);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  const std::lock_guard lock(machine().mutex);
  if (bytes == 0) return cudaSuccess;
  if (!holds(machine().device, to, bytes)) return fail(cudaErrorInvalidValue);
  return push(of(stream), {.work = [=] {
                // Whole pages become 0 by being given back.
                auto* const first = static_cast<std::byte*>(to);
                const bool returns = value == 0 && bytes > large && (first - machine().region) % page == 0;
                const std::size_t pages = returns ? bytes / page * page : 0;
                if (returns) madvise(to, pages, MADV_DONTNEED);
                std::memset(first + pages, value, bytes - pages);
              }});
}

// ---- Streams and events

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  const std::lock_guard lock(machine().mutex);
  *stream = new CUstream_st;
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
  if (!event->last || event->last->done) return cudaSuccess;
  if (spoils(s)) return fail(cudaErrorStreamCaptureUnsupported);  // what is recorded stands alone
  return push(s, {.waits = event->last});
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st;
  (*event)->timed = (flags & cudaEventDisableTiming) == 0;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  const std::lock_guard lock(machine().mutex);
  CUstream_st& s = of(stream);
  const bool external = (flags & cudaEventRecordExternal) != 0;
  if (external != (s.recorded != nullptr)) {
    spoils(s);
    return fail(external ? cudaErrorInvalidValue : cudaErrorStreamCaptureUnsupported);
  }
  if (external) return push(s, {.external = event});
  event->last = std::make_shared<Mark>(&s);
  return push(s, {.marks = event->last});
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard lock(machine().mutex);
  if (!event->last || event->last->done) return cudaSuccess;
  // Time passes: who asks again and again gets there.
  const Inside inside;
  step(*event->last->stream);
  return event->last->done ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const std::lock_guard lock(machine().mutex);
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
  s.spoiled = false;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(machine().mutex);
  CUstream_st& s = of(stream);
  *graph = std::exchange(s.recorded, nullptr);
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
  for (const Task& recorded : graph->tasks) {
    Task task = recorded;
    if (task.external != nullptr) task.marks = task.external->last = std::make_shared<Mark>(&s);
    push(s, std::move(task));
  }
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
