#include "tests/emulated/streams.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "tests/emulated/machine.h"

namespace lpsgd::emulated {

namespace {

thread_local cudaError_t last_error = cudaSuccess;

void protect(int rights) {
  const Machine& m = machine();
  if (m.region_used > 0 && mprotect(m.region, m.region_used, rights) != 0) undefined("mprotect failed");
}

/// A capture is added to. CUDA's graphs are not made to be built by several threads at once.
void add_to(Capture& capture) {
  if (capture.maker == std::this_thread::get_id()) return;
  capture.maker = std::this_thread::get_id();
  if (++capture.takeovers > 2) undefined("a graph is built by several threads at once");
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

Inside::~Inside() {
  if (--machine().inside == 0 && std::exchange(machine().open, false)) protect(PROT_NONE);
}
void Inside::open() {
  if (!std::exchange(machine().open, true)) protect(PROT_READ | PROT_WRITE);
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

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
  if (stream == cudaStreamPerThread) {
    per_thread.device = current_device;
    return per_thread;
  }
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

CUstream_st* make_stream() {
  auto* const stream = new CUstream_st;
  stream->device = current_device;
  machine().streams.insert(stream);
  return stream;
}

cudaError_t push(CUstream_st& stream, Task task) {
  if (stream.capture) {
    add_to(*stream.capture);
    Capture::Lane& lane = stream.capture->lanes[stream.lane];
    if (task.work || task.event != nullptr) lane.behind[stream.lane] = ++lane.tasks;
    stream.capture->graph->nodes.push_back({stream.lane, std::move(task)});
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

bool spoils(CUstream_st& stream) {
  if (stream.capture) stream.capture->spoiled = true;
  return stream.capture != nullptr;
}
bool spoils_own() {
  return own_capture != nullptr && spoils(*own_capture);
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

cudaError_t queue(cudaStream_t stream, std::function<void()> work, std::vector<std::int64_t> same) {
  const std::lock_guard lock(machine().mutex);
  return push(of(stream), {.work = std::move(work), .same = std::move(same)});
}

cudaError_t queue_at_once(cudaStream_t stream, std::function<void()> work) {
  const std::lock_guard lock(machine().mutex);
  return push(of(stream), {.work = std::move(work), .at_once = true});
}

cudaError_t queue_kernel(cudaStream_t stream, std::function<void()> work) {
  const std::lock_guard lock(machine().mutex);
  CUstream_st& s = of(stream);
  if (s.device != current_device) return fail(cudaErrorInvalidResourceHandle);
  return push(s, {.work = std::move(work)});
}

void touch(const std::function<void()>& work) {
  const std::lock_guard lock(machine().mutex);
  const Inside inside;
  Inside::open();
  work();
}

cudaError_t finish(cudaStream_t stream) {
  const std::lock_guard lock(machine().mutex);
  CUstream_st& s = of(stream);
  if (spoils(s) || spoils_own()) return fail(cudaErrorStreamCaptureUnsupported);
  drain(s);
  return cudaSuccess;
}

bool is_captured(cudaStream_t stream) {
  const std::lock_guard lock(machine().mutex);
  return of(stream).capture != nullptr;
}

bool is_device_memory(const void* at, std::size_t bytes) {
  const std::lock_guard lock(machine().mutex);
  return holds(machine().device, at, bytes);
}

int device_of(cudaStream_t stream) {
  const std::lock_guard lock(machine().mutex);
  return of(stream).device;
}

}  // namespace lpsgd::emulated
