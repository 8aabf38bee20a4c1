// The emulated runtime's streams, events and graphs, and the machine that they run on. Internal to the
// runtime's files. All of it is called with machine().mutex held.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "tests/emulated/host_copies.h"

/// A graph that is being captured: the streams whose work goes there, first the one that began the capture.
struct Capture {
  struct Branch {
    CUstream_st* stream = nullptr;
    std::size_t tasks = 0;             // that do work
    std::vector<std::size_t> follows;  // how many tasks of each branch come before this branch's next one
  };
  CUgraph_st* graph = nullptr;  // null once the capture has ended
  std::vector<Branch> branches;
  bool invalidated = false;  // by a call that is not allowed during capture
  const std::thread::id thread = std::this_thread::get_id();
};

/// A point in a stream's work: one record of an event, which later records of that event do not change.
struct Marker {
  CUstream_st* stream = nullptr;
  bool done = false;
  double when = 0;
  std::shared_ptr<Capture> capture = {};  // the capture that it belongs to, if any
  std::vector<std::size_t> follows = {};  // of its branch in the capture
};

struct CUevent_st {
  int device = 0;
  std::shared_ptr<Marker> last;  // null: never recorded, which counts as done
  bool timed = false;
};

struct Task {
  std::function<void()> work = {};
  std::shared_ptr<Marker> waits_for = {}, marks = {};
  std::vector<std::int64_t> key = {};  // of queue()
  bool eager = false;                  // of queue_eager()
  CUevent_st* event = nullptr;         // recorded at each launch of the graph
};

struct CUgraph_st {
  struct Node {
    std::size_t branch;
    Task task;
  };
  std::vector<Node> nodes;
  std::size_t branches = 1;
};
struct CUgraphExec_st {
  CUgraph_st graph;
  std::vector<CUstream_st*> streams;  // by branch: its own stream; for the first, the stream of the launch
};

struct CUstream_st {
  int device = 0;
  std::deque<Task> tasks;
  std::uint64_t idle_until = 0;           // with random delays: when the first task starts
  std::shared_ptr<Capture> capture = {};  // not null: what is queued is captured
  std::size_t branch = 0;                 // its branch in `capture`
};

namespace lpsgd::emulated {

constexpr std::size_t page = 4096, large = std::size_t{1} << 20, reserved = std::size_t{1} << 36;

/// Whole pages, and one more that is never allocated.
constexpr std::size_t allocated_for(std::size_t bytes) {
  return (bytes + page - 1) / page * page + page;
}

/// An environment variable's number.
std::size_t number(const char* name, std::size_t otherwise);

struct Machine {
  std::recursive_mutex mutex;
  std::vector<CUstream_st*> streams;  // in the order of their creation
  std::set<const CUevent_st*> events;
  std::map<const std::byte*, std::size_t> device, pinned;  // bytes by address
  std::byte* region = nullptr;                             // of all device memory
  /// Of the region, if the processor has such keys: to change the rights of all its pages takes long.
  int protection_key = -1;
  std::size_t region_used = 0, used = 0;
  const std::size_t memory = number("LPSGD_EMULATED_MEMORY", std::size_t{4} << 30);
  const int devices = static_cast<int>(number("LPSGD_EMULATED_GPUS", 1));
  int depth = 0;             // of nested WorkScopes
  bool memory_open = false;  // the host's instructions can access device memory
  std::vector<std::int64_t> last_key;
  bool notes_host_copies = false;
  std::vector<HostCopy> host_copies;
  const bool random_delays = std::getenv("LPSGD_EMULATED_ORDER") != nullptr;
  std::minstd_rand draw{static_cast<unsigned>(number("LPSGD_EMULATED_ORDER", 1))};
  double lost_seconds = 0;  // in which tasks could have gone on, but had no processor
  std::uint64_t clock = 0;  // of the delays, in ticks: one for each task queued, more for a query

  /// Where `bytes` are allocated: first at new addresses, so that a late access does not hit other memory,
  /// later in the first gap.
  std::byte* find_address(std::size_t bytes) {
    constexpr std::size_t fresh = std::size_t{8} << 20;
    std::byte* at = region;
    if (region_used > fresh)
      for (const auto& [begin, size] : device) {
        if (static_cast<std::size_t>(begin - at) >= allocated_for(bytes)) return at;
        at = region + (begin - region) + allocated_for(size);
      }
    at = region_used > fresh ? at : region + region_used;
    region_used = std::max(region_used, static_cast<std::size_t>(at - region) + allocated_for(bytes));
    return at;
  }
};
Machine& machine();

extern thread_local int current_device;

/// Put it around calls that run tasks: the outermost one ends the host's access to device memory.
class WorkScope {
 public:
  WorkScope() { ++machine().depth; }
  ~WorkScope();
  WorkScope(const WorkScope&) = delete;
  WorkScope& operator=(const WorkScope&) = delete;
  /// Lets the host's instructions access device memory.
  static void open_memory();
};

/// The time of events, in seconds.
double now();
/// The stream of a handle.
CUstream_st& stream_of(cudaStream_t handle);
/// A new stream on the thread's device.
CUstream_st* make_stream();
/// Queues a task, or captures it.
cudaError_t push(CUstream_st& stream, Task task);
/// Runs a stream's first task, after the tasks it waits for.
void run_next(CUstream_st& stream);
/// Runs all work queued on a stream, or on every stream.
void drain(CUstream_st& stream);
void drain_all();
/// Runs the work before the marker.
void run_until(const Marker& marker);
/// With random delays: advances the clock and runs the tasks whose delays are over.
void pass_time(std::uint64_t ticks);

/// For a call that is not allowed on a stream during capture: invalidates the capture. Returns whether there
/// is one.
bool invalidate_capture(CUstream_st& stream);
/// The same, for a call that is not allowed in a thread that has begun a capture.
bool invalidate_own_capture();
extern thread_local CUstream_st* own_capture;  // where this thread began a capture

bool in_region(const void* at);
bool contains(const std::map<const std::byte*, std::size_t>& ranges, const void* at, std::size_t bytes);

}  // namespace lpsgd::emulated
