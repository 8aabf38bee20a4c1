// NCCL as lpsgd uses it, without blocking calls: groups of messages and all-reduce, over Unix sockets between
// the processes, or outside of graphs the threads, of one host. Messages are sent before the call returns, so
// that no rank delays another; received bytes are written to device memory as late as other work.
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/emulated/machine.h"

using namespace lpsgd::emulated;

namespace {

/// A message in flight. Its length is sent first, so that both ends can compare it.
struct Transfer {
  std::byte* bytes;
  std::uint64_t size;
  std::uint64_t expected;  // the header
  std::uint64_t header;
  std::size_t done = 0;  // bytes of both
};
/// In a header: the message is part of a graph, as it must be on both ends.
constexpr std::uint64_t in_graph = std::uint64_t{1} << 63;

}  // namespace

struct ncclComm {
  int rank = 0, ranks = 1;
  std::vector<int> sockets;  // by rank; -1 for this one
  int device = 0;
  std::atomic<bool> failed{false}, aborted{false};
  bool shares_process = false;                            // with another rank, which is a thread
  int busy = 0;                                           // how many more queries return "in progress"
  std::shared_ptr<int> graphs = std::make_shared<int>();  // shared with the graphs that use the communicator
  ~ncclComm() {
    for (const int s : sockets)
      if (s >= 0) close(s);
  }
};

namespace {

struct Message {
  bool sends;
  int peer;
  std::byte* bytes;
  std::size_t size;
  ncclComm* comm;
  cudaStream_t stream;
};
thread_local int groups = 0;
thread_local std::vector<Message> group;

/// Sends or receives as much as the socket allows now. False if the other end is closed.
bool move(int socket, Transfer& t, bool sends) {
  for (;;) {
    const bool in_header = t.done < sizeof t.header;
    std::byte* at =
        in_header ? reinterpret_cast<std::byte*>(&t.header) + t.done : t.bytes + (t.done - sizeof t.header);
    const std::size_t left = in_header ? sizeof t.header - t.done : t.size + sizeof t.header - t.done;
    if (left == 0) return true;
    const ssize_t n =
        sends ? send(socket, at, left, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(socket, at, left, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (n <= 0) return false;
    t.done += static_cast<std::size_t>(n);
    if (!sends && t.done == sizeof t.header && t.header != t.expected)
      undefined((t.header ^ t.expected) == in_graph ? "a message is captured on one of its two ranks"
                                                    : "a message is received as one of another length");
  }
}

bool transfer(ncclComm& comm, const std::vector<Message>& messages, bool launched = false) {
  std::vector<std::deque<Transfer>> out(comm.sockets.size()), in(comm.sockets.size());
  std::deque<Message> own;
  for (const Message& m : messages) {
    const auto peer = static_cast<std::size_t>(m.peer);
    if (m.peer == comm.rank)
      own.push_back(m);
    else {
      const std::uint64_t header = m.size | (launched ? in_graph : 0);
      (m.sends ? out : in)[peer].push_back({m.bytes, m.size, header, m.sends ? header : 0});
    }
  }
  for (std::size_t a = 0; a < own.size(); ++a) {  // the n-th message to itself is the n-th received
    if (!own[a].sends) continue;
    for (Message& m : own) {
      if (m.sends || m.bytes == nullptr) continue;
      if (m.size != own[a].size) undefined("a message is received as one of another length");
      std::memcpy(m.bytes, own[a].bytes, m.size);
      m.bytes = nullptr;
      break;
    }
  }
  while (!comm.failed && !comm.aborted) {
    std::vector<pollfd> waits;
    for (std::size_t peer = 0; peer < comm.sockets.size(); ++peer) {
      for (const bool sends : {true, false}) {
        auto& queue = (sends ? out : in)[peer];
        while (!queue.empty()) {
          Transfer& t = queue.front();
          if (!move(comm.sockets[peer], t, sends)) return false;
          if (t.done < t.size + sizeof t.header) break;
          queue.pop_front();
        }
      }
      const int events = (out[peer].empty() ? 0 : POLLOUT) | (in[peer].empty() ? 0 : POLLIN);
      if (events != 0) waits.push_back({comm.sockets[peer], static_cast<short>(events), 0});
    }
    if (waits.empty()) return true;
    poll(waits.data(), waits.size(), 100);
  }
  return false;
}

/// A kernel whose messages do not arrive ends when the communicator is aborted.
void stall(ncclComm& comm) {
  comm.failed = true;
  while (!comm.aborted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

/// Whether a test wants this call to fail.
bool is_to_fail(const char* call) {
  const char* failing = std::getenv("LPSGD_EMULATED_NCCL_FAILURE");
  return failing != nullptr && std::strcmp(failing, call) == 0;
}

/// The result of a call that continues in the background.
ncclResult_t in_progress(ncclComm& comm) {
  comm.busy = 2;
  return comm.failed ? ncclRemoteError : ncclInProgress;
}
/// Whether a call may be made now, on this stream.
bool is_ready(const ncclComm& comm, cudaStream_t stream) {
  return comm.busy == 0 && device_of(stream) == comm.device;
}

/// Captures work with messages. It runs when its graph is launched, in the machine's one lock.
void capture(ncclComm& comm, cudaStream_t stream, std::function<void()> work) {
  if (comm.shares_process) undefined("messages are captured between ranks that are threads of one process");
  queue_eager(stream, std::move(work));
}

sockaddr_un address(const ncclUniqueId& id, int rank, socklen_t* length) {
  sockaddr_un out{};
  out.sun_family = AF_UNIX;
  const std::string name = "lpsgd-" + std::string(id.internal) + "-" + std::to_string(rank);
  std::memcpy(out.sun_path + 1, name.data(), name.size());  // without a file
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return out;
}

bool connect_all(ncclComm& comm, const ncclUniqueId& id) {
  comm.sockets.assign(static_cast<std::size_t>(comm.ranks), -1);
  socklen_t length = 0;
  sockaddr_un at = address(id, comm.rank, &length);
  const auto add = [&comm](int peer, int socket) {
    ucred owner{};
    socklen_t size = sizeof owner;
    getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &owner, &size);
    comm.shares_process |= owner.pid == getpid();
    comm.sockets[static_cast<std::size_t>(peer)] = socket;
  };
  const int listens = socket(AF_UNIX, SOCK_STREAM, 0);
  if (bind(listens, reinterpret_cast<sockaddr*>(&at), length) != 0 || listen(listens, comm.ranks) != 0)
    return false;
  for (int peer = 0; peer < comm.rank; ++peer) {
    at = address(id, peer, &length);
    const int s = socket(AF_UNIX, SOCK_STREAM, 0);
    for (int tries = 0; connect(s, reinterpret_cast<sockaddr*>(&at), length) != 0; ++tries) {
      if (tries == 6000) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    send(s, &comm.rank, sizeof comm.rank, MSG_NOSIGNAL);
    add(peer, s);
  }
  for (int peer = comm.rank + 1; peer < comm.ranks; ++peer) {
    pollfd waits{listens, POLLIN, 0};
    if (poll(&waits, 1, 60000) <= 0) return false;
    const int s = accept(listens, nullptr, nullptr);
    int from = -1;
    if (recv(s, &from, sizeof from, MSG_WAITALL) != sizeof from) return false;
    add(from, s);
  }
  close(listens);
  return true;
}

}  // namespace

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited or there was a network error"
                                   : "the emulated GPU refuses";
}
const char* ncclGetLastError(ncclComm_t) {
  return "";
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device draw;
  std::snprintf(id->internal, sizeof id->internal, "%08x%08x", draw(), draw());
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int ranks, ncclUniqueId id, int rank, ncclConfig_t*) {
  auto* comm = new ncclComm;
  comm->rank = rank;
  comm->ranks = ranks;
  cudaGetDevice(&comm->device);
  *made = comm;
  comm->failed = !connect_all(*comm, id) || is_to_fail("ncclCommInitRankConfig");
  return in_progress(*comm);
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (comm->graphs.use_count() > 1)
    undefined("NCCL would wait for ever for graphs that use the communicator");
  return comm->busy > 0 ? ncclInvalidUsage : in_progress(*comm);
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm->busy > 0) return ncclInvalidUsage;
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->aborted = true;
  while (comm->graphs.use_count() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  *state = comm->failed ? ncclRemoteError : comm->busy > 0 ? ncclInProgress : ncclSuccess;
  if (comm->busy > 0) --comm->busy;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++groups;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (groups == 0) return ncclInvalidUsage;
  if (--groups > 0 || group.empty()) return ncclSuccess;
  std::vector<Message> messages;
  messages.swap(group);
  ncclComm& comm = *messages[0].comm;
  const cudaStream_t stream = messages[0].stream;
  if (!is_ready(comm, stream)) return ncclInvalidUsage;
  if (is_captured(stream)) {
    capture(comm, stream, [messages, &comm, graphs = comm.graphs] {
      if (!transfer(comm, messages, true)) stall(comm);
    });
    return in_progress(comm);
  }
  synchronize(stream);
  auto host = std::make_shared<std::vector<std::vector<std::byte>>>();
  std::vector<Message> here = messages;
  run_now([&] {
    for (Message& m : here) {
      host->emplace_back(m.size);
      if (m.sends) std::memcpy(host->back().data(), m.bytes, m.size);
      m.bytes = host->back().data();
    }
  });
  if (!transfer(comm, here)) comm.failed = true;
  queue(stream, [messages, host] {
    for (std::size_t i = 0; i < messages.size(); ++i)
      if (!messages[i].sends) std::memcpy(messages[i].bytes, (*host)[i].data(), messages[i].size);
  });
  return in_progress(comm);
}
ncclResult_t ncclSend(const void* bytes, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  if (type != ncclUint8 || !is_device_memory(bytes, count)) return ncclInvalidArgument;
  ncclGroupStart();
  group.push_back({true, peer, static_cast<std::byte*>(const_cast<void*>(bytes)), count, comm, stream});
  return ncclGroupEnd();
}
ncclResult_t ncclRecv(void* bytes, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  if (type != ncclUint8 || !is_device_memory(bytes, count)) return ncclInvalidArgument;
  ncclGroupStart();
  group.push_back({false, peer, static_cast<std::byte*>(bytes), count, comm, stream});
  return ncclGroupEnd();
}

namespace {

/// The sum of all ranks' values, added in the order of the ranks.
std::vector<float> sum_over_ranks(ncclComm& comm, std::vector<float> mine, cudaStream_t stream,
                                  bool launched = false) {
  const std::size_t count = mine.size();
  std::vector<std::vector<float>> all(static_cast<std::size_t>(comm.ranks), std::vector<float>(count));
  std::vector<float>& own = all[static_cast<std::size_t>(comm.rank)] = std::move(mine);
  std::vector<Message> messages;
  const auto bytes = [](std::vector<float>& v) { return reinterpret_cast<std::byte*>(v.data()); };
  for (int peer = 0; peer < comm.ranks; ++peer) {
    if (peer == comm.rank) continue;
    messages.push_back({true, peer, bytes(own), 4 * count, &comm, stream});
    messages.push_back({false, peer, bytes(all[static_cast<std::size_t>(peer)]), 4 * count, &comm, stream});
  }
  if (!transfer(comm, messages, launched)) launched ? stall(comm) : void(comm.failed = true);
  std::vector<float> total(count);
  for (const std::vector<float>& values : all)
    for (std::size_t i = 0; i < count; ++i) total[i] += values[i];
  return total;
}

}  // namespace

ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t sum, ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclFloat32 || sum != ncclSum || groups > 0 || !is_device_memory(from, 4 * count) ||
      !is_device_memory(to, 4 * count))
    return ncclInvalidArgument;
  if (!is_ready(*comm, stream)) return ncclInvalidUsage;
  if (is_to_fail("ncclAllReduce")) return ncclInvalidArgument;
  const auto* const values = static_cast<const float*>(from);
  if (is_captured(stream)) {
    capture(*comm, stream, [=, graphs = comm->graphs] {
      const std::vector<float> total = sum_over_ranks(*comm, {values, values + count}, stream, true);
      std::memcpy(to, total.data(), 4 * count);
    });
    return in_progress(*comm);
  }
  synchronize(stream);
  std::vector<float> own(count);
  run_now([&] { std::memcpy(own.data(), from, 4 * count); });
  queue(stream, [to, total = sum_over_ranks(*comm, std::move(own), stream)] {
    std::memcpy(to, total.data(), 4 * total.size());
  });
  return in_progress(*comm);
}
