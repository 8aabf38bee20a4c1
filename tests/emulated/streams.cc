#include "tests/emulated/streams.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "core/clock.h"
#include "tests/emulated/machine.h"

namespace lpsgd::emulated {

namespace {

thread_local cudaError_t last_error = cudaSuccess;

void protect(int rights) {
  const Machine& m = machine();
  if (m.region_used == 0) return;
  const bool failed = m.protection_key >= 0
                          ? pkey_set(m.protection_key, rights == PROT_NONE ? PKEY_DISABLE_ACCESS : 0) != 0
                          : mprotect(m.region, m.region_used, rights) != 0;
  if (failed) undefined("device memory cannot be protected");
}

/// How often this thread has slept or waited.
long waits() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

/// Does the work. For how long it had no processor, though it waited for nothing, is taken off the clock:
/// else the machine's other jobs would decide which of two kernels is the faster.
void run_timed(const std::function<void()>& work) {
  const long waits_before = waits();
  const double begin = now_seconds(), cpu_begin = cpu_seconds(CpuTime::thread);
  work();
  const double cpu = cpu_seconds(CpuTime::thread) - cpu_begin;
  const double lost = now_seconds() - begin - cpu;
  if (waits() == waits_before && lost > 0) machine().lost_seconds += lost;
}

/// A graph is captured by one thread: CUDA's may not be captured by several at once.
void check_thread(const Capture& capture) {
  if (capture.thread != std::this_thread::get_id()) undefined("a graph is captured by several threads");
}

/// The stream of cudaStreamPerThread.
struct ThreadStream : CUstream_st {
  ThreadStream() { machine().streams.push_back(this); }
  ~ThreadStream() {
    const std::lock_guard lock(machine().mutex);
    drain(*this);
    std::erase(machine().streams, this);
  }
  ThreadStream(const ThreadStream&) = delete;
  ThreadStream& operator=(const ThreadStream&) = delete;
};

/// In ticks: most tasks start at once, some a little later, some when much has been queued behind them.
std::uint64_t random_delay() {
  switch (machine().draw() % 8) {
    case 0:
      return machine().draw() % 64;
    case 1:
      return machine().draw() % 8;
    default:
      return 0;
  }
}

}  // namespace

thread_local int current_device = 0;
thread_local CUstream_st* own_capture = nullptr;

std::size_t number(const char* name, std::size_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

Machine& machine() {
  static auto* const the = new Machine;  // outlives what is released at exit
  return *the;
}

WorkScope::~WorkScope() {
  if (--machine().depth == 0 && std::exchange(machine().memory_open, false)) protect(PROT_NONE);
}
void WorkScope::open_memory() {
  if (!std::exchange(machine().memory_open, true)) protect(PROT_READ | PROT_WRITE);
}

double now() {
  return now_seconds() - machine().lost_seconds;
}

void run_next(CUstream_st& stream) {
  const Task task = std::move(stream.tasks.front());
  stream.tasks.pop_front();
  if (task.waits_for) run_until(*task.waits_for);
  if (task.work) {
    std::vector<std::int64_t>& last_key = machine().last_key;
    WorkScope::open_memory();
    if (task.key.empty() || task.key != last_key) run_timed(task.work);
    last_key = task.key;
  }
  if (task.marks) {
    task.marks->when = now();
    task.marks->done = true;
  }
  if (task.event != nullptr) {  // of a graph; until now it was an earlier launch's
    if (!machine().events.contains(task.event)) undefined("a graph records an event that was destroyed");
    task.event->last = std::make_shared<Marker>();
    task.event->last->done = true;
    task.event->last->when = now();
  }
}

void run_until(const Marker& marker) {
  const WorkScope scope;
  while (!marker.done) {
    if (marker.stream->tasks.empty()) undefined("a stream waits for work that was never queued");
    run_next(*marker.stream);
  }
}

void pass_time(std::uint64_t ticks) {
  Machine& m = machine();
  if (!m.random_delays) return;
  m.clock += ticks;
  const WorkScope scope;
  for (CUstream_st* s : m.streams)
    while (!s->tasks.empty() && s->idle_until <= m.clock) {
      const std::shared_ptr<Marker>& needed = s->tasks.front().waits_for;
      if (needed && !needed->done) break;
      run_next(*s);
      s->idle_until = m.clock + random_delay();
    }
}

CUstream_st& stream_of(cudaStream_t handle) {
  if (handle == cudaStreamPerThread) {
    static thread_local ThreadStream stream;
    stream.device = current_device;
    return stream;
  }
  if (std::ranges::find(machine().streams, handle) == machine().streams.end())
    undefined("work for CUDA's default stream, or for one that does not exist");
  return *handle;
}

void drain(CUstream_st& stream) {
  const WorkScope scope;
  while (!stream.tasks.empty()) run_next(stream);
}
void drain_all() {
  for (CUstream_st* s : machine().streams) drain(*s);
}

CUstream_st* make_stream() {
  auto* const stream = new CUstream_st;
  stream->device = current_device;
  machine().streams.push_back(stream);
  return stream;
}

cudaError_t push(CUstream_st& stream, Task task) {
  if (stream.capture) {
    check_thread(*stream.capture);
    Capture::Branch& branch = stream.capture->branches[stream.branch];
    if (task.work || task.event != nullptr) branch.follows[stream.branch] = ++branch.tasks;
    stream.capture->graph->nodes.push_back({stream.branch, std::move(task)});
    return cudaSuccess;
  }
  if (stream.tasks.empty() && machine().random_delays) stream.idle_until = machine().clock + random_delay();
  stream.tasks.push_back(std::move(task));
  pass_time(1);
  return cudaSuccess;
}

bool invalidate_capture(CUstream_st& stream) {
  if (stream.capture) stream.capture->invalidated = true;
  return stream.capture != nullptr;
}
bool invalidate_own_capture() {
  return own_capture != nullptr && invalidate_capture(*own_capture);
}

bool contains(const std::map<const std::byte*, std::size_t>& ranges, const void* at, std::size_t bytes) {
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

void undefined(const char* what) {
  std::fprintf(stderr, "emulated GPU: %s\n", what);
  std::abort();
}

cudaError_t fail(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}
cudaError_t last() {
  return std::exchange(last_error, cudaSuccess);
}

double delay_of(const char* variable, int number) {
  const char* list = std::getenv(variable);
  while (list != nullptr && *list != '\0') {
    char* rest = nullptr;
    const long found = std::strtol(list, &rest, 10);
    if (*rest != '=') return 0;
    const double seconds = std::strtod(rest + 1, &rest);
    if (found == number) return seconds;
    list = *rest == ',' ? rest + 1 : nullptr;
  }
  return 0;
}

void queue_delay(cudaStream_t stream, double seconds) {
  if (seconds > 0)
    queue(stream, [seconds] { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); });
}

cudaError_t queue(cudaStream_t stream, std::function<void()> work, std::vector<std::int64_t> key) {
  const std::lock_guard lock(machine().mutex);
  return push(stream_of(stream), {.work = std::move(work), .key = std::move(key)});
}

cudaError_t queue_eager(cudaStream_t stream, std::function<void()> work) {
  const std::lock_guard lock(machine().mutex);
  return push(stream_of(stream), {.work = std::move(work), .eager = true});
}

cudaError_t queue_kernel(cudaStream_t stream, std::function<void()> work) {
  const std::lock_guard lock(machine().mutex);
  CUstream_st& s = stream_of(stream);
  if (s.device != current_device) return fail(cudaErrorInvalidResourceHandle);
  return push(s, {.work = std::move(work)});
}

void run_now(const std::function<void()>& work) {
  const std::lock_guard lock(machine().mutex);
  const WorkScope scope;
  WorkScope::open_memory();
  work();
}

cudaError_t synchronize(cudaStream_t stream) {
  const std::lock_guard lock(machine().mutex);
  CUstream_st& s = stream_of(stream);
  if (invalidate_capture(s) || invalidate_own_capture()) return fail(cudaErrorStreamCaptureUnsupported);
  drain(s);
  return cudaSuccess;
}

bool is_captured(cudaStream_t stream) {
  const std::lock_guard lock(machine().mutex);
  return stream_of(stream).capture != nullptr;
}

bool is_device_memory(const void* at, std::size_t bytes) {
  const std::lock_guard lock(machine().mutex);
  return contains(machine().device, at, bytes);
}

int device_of(cudaStream_t stream) {
  const std::lock_guard lock(machine().mutex);
  return stream_of(stream).device;
}

}  // namespace lpsgd::emulated
