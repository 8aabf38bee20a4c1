// Streams, events and graphs as the emulated runtime keeps them, and the machine that they run on. Internal
// to the runtime's files. What is called here is called with machine().mutex held.
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

/// A graph that is being made: the streams whose work goes there, the first of which it began with, and how
/// much of each other's work each is behind of.
struct Capture {
  struct Lane {
    CUstream_st* stream = nullptr;
    std::size_t tasks = 0;            // that do work
    std::vector<std::size_t> behind;  // so many of each lane
  };
  CUgraph_st* graph = nullptr;  // null once it is done
  std::vector<Lane> lanes;
  bool spoiled = false;  // by a call that no graph allows
  std::thread::id maker = std::this_thread::get_id();
  int takeovers = 0;  // by other threads: the one that began, another, and the first again
};

/// One recording of an event: later ones do not change what waits for this one.
struct Mark {
  CUstream_st* stream = nullptr;
  bool done = false;
  double when = 0;
  std::shared_ptr<Capture> capture = {};  // not null: it is part of that
  std::vector<std::size_t> behind = {};
};

struct CUevent_st {
  int device = 0;
  std::shared_ptr<Mark> last;  // null: never recorded, which counts as done
  bool timed = false;
};

struct Task {
  std::function<void()> work = {};
  std::shared_ptr<Mark> waits = {}, marks = {};
  std::vector<std::int64_t> same = {};  // as queue() has it
  bool at_once = false;                 // other ranks wait for it: done when its graph is launched
  CUevent_st* event = nullptr;          // recorded at each launch
};

struct CUgraph_st {
  struct Node {
    std::size_t lane;
    Task task;
  };
  std::vector<Node> nodes;
  std::size_t lanes = 1;
};
struct CUgraphExec_st {
  CUgraph_st graph;
  std::vector<CUstream_st*> lanes;  // of its own, but the first
};

struct CUstream_st {
  int device = 0;
  std::deque<Task> tasks;
  std::shared_ptr<Capture> capture = {};  // not null: what comes is captured
  std::size_t lane = 0;                   // there
};

namespace lpsgd::emulated {

constexpr std::size_t page = 4096, large = std::size_t{1} << 20, reserved = std::size_t{1} << 36;

/// Whole pages, and one behind them that nobody has.
constexpr std::size_t taken_by(std::size_t bytes) {
  return (bytes + page - 1) / page * page + page;
}

/// An environment variable's number.
std::size_t number(const char* name, std::size_t otherwise);

struct Machine {
  std::recursive_mutex mutex;
  std::set<CUstream_st*> streams;
  std::set<const CUevent_st*> events;
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
Machine& machine();

extern thread_local int current_device;

/// Around calls that do work: what they open is closed at the end of the outermost.
class Inside {
 public:
  Inside() { ++machine().inside; }
  ~Inside();
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  /// Lets the host's instructions read device memory.
  static void open();
};

double now();
/// The stream of a handle.
CUstream_st& of(cudaStream_t stream);
/// A new stream, of the thread's device.
CUstream_st* make_stream();
/// Queues a task, or records it.
cudaError_t push(CUstream_st& stream, Task task);
/// Does a stream's first task; all that it has; what comes before the mark; what all streams have.
void step(CUstream_st& stream);
void drain(CUstream_st& stream);
void reach(const Mark& mark);
void drain_all();

/// A call that no graph of the stream allows.
bool spoils(CUstream_st& stream);
/// A call that no graph allows that its own thread has begun.
bool spoils_own();
extern thread_local CUstream_st* own_capture;

bool in_region(const void* at);
bool holds(const std::map<const std::byte*, std::size_t>& ranges, const void* at, std::size_t bytes);

}  // namespace lpsgd::emulated
