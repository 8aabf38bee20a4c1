// A transport moves bytes between ranks; it has no notion of tensors. Ranks may be threads of this process or
// processes under mpirun; both give the same results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "comm/collectives.h"
#include "core/device.h"

namespace lpsgd {

/// Point-to-point and collective operations of one rank. Calls on one Transport object come from one thread
/// at a time (the communication thread while a step is in flight, the main thread otherwise). All waiting
/// yields the core. Errors throw CommError; after one, only abort() may be called.
class Transport {
 public:
  /// An operation in flight. Its buffers must stay valid and unchanged until test() has returned true.
  using Request = std::size_t;

  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const char* name() const = 0;
  /// The number in the run of one of this transport's ranks, for messages.
  virtual int rank_in_run(int rank) const { return rank; }
  /// Rank and number of ranks among those that share this rank's machine.
  virtual int local_rank() const = 0;
  virtual int local_size() const = 0;

  /// Whether messages may lie in CUDA device memory.
  virtual bool takes_device_memory() const { return false; }
  /// Whether operations are queued on stream() and run there in the order called. They count as complete at
  /// once: work that reads or overwrites their buffers must be queued after them. All ranks call them in one
  /// order; messages that cross each other are posted in one group.
  virtual bool ordered() const { return false; }
  virtual StreamView stream() const { return {}; }
  virtual void begin_group() {}
  virtual void end_group() {}

  // Messages between two ranks with one tag arrive in the order sent; sizes on both sides are equal.
  /// The tag of the collectives' messages. They have a channel of their own and are not counted.
  static constexpr int control_tag = -1;
  virtual Request isend(std::span<const std::byte> bytes, int to, int tag) = 0;
  virtual Request irecv(std::span<std::byte> bytes, int from, int tag) = 0;
  /// The transport's own sum over ranks, in place, in float32; its order is the transport's.
  virtual Request iallreduce(std::span<float> values) = 0;
  /// True once the operation is complete; the request is then invalid.
  virtual bool test(Request request) = 0;
  /// Makes room for `per_peer` messages in flight to and from each other rank, and as many all-reduces, so
  /// that none of them allocates.
  virtual void reserve(std::size_t /*per_peer*/) {}
  /// Waits for all, yielding.
  void wait(std::span<const Request> requests);

  // Blocking collectives, for everything outside the step. All ranks make the same calls at the same places.
  void barrier(Place at = std::source_location::current()) { collectives().barrier(at); }
  void broadcast(std::span<std::byte> bytes, int root, Place at = std::source_location::current()) {
    collectives().broadcast(bytes, root, at);
  }
  /// Every rank's `mine` (equal sizes), concatenated in rank order, on every rank.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                  Place at = std::source_location::current()) {
    collectives().all_gather(mine, all, at);
  }
  /// Each value becomes the mean of the ranks' values, which are added in rank order: the same bits on every
  /// rank. Returns the bytes that this rank sent, 2(K-1)/K of the values' bytes in the mean over ranks.
  std::uint64_t average(std::span<float> values, Place at = std::source_location::current()) {
    return collectives().average(values, at);
  }
  /// Of a transport over another one: that one's.
  virtual Collectives& collectives() = 0;
  /// The transport that carries messages with control_tag: this one, or one that it is over.
  virtual Transport& control() { return *this; }

  // Built on the above.
  /// This rank's share of the 2(K-1) copies that a ring all-reduce of `bytes` moves; the shares of all ranks
  /// add up exactly.
  std::uint64_t ring_share(std::uint64_t bytes) const;
  /// Every rank's `mine`, by rank.
  template <class T>
    requires std::is_trivially_copyable_v<T>
  std::vector<T> all_gather(const T& mine, Place at = std::source_location::current()) {
    std::vector<T> all(static_cast<std::size_t>(size()));
    all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), at);
    return all;
  }
  bool all_equal(std::uint64_t mine,  // the same value on every rank?
                 Place at = std::source_location::current());
  /// Texts of at most `longest_text` bytes.
  static constexpr std::uint64_t longest_text = 16 << 20;
  std::vector<std::string> all_gather_text(const std::string& mine,
                                           Place at = std::source_location::current());

  /// Ends the job: all ranks of this transport stop waiting, with an error there (threads), or are ended by
  /// the launcher, and this process with them (mpi). Never throws.
  virtual void abort(int status) noexcept = 0;
  /// Drops every operation in flight, so that their buffers may be freed. After that only abort() may be
  /// called. The other ranks stop with an error at once (threads) or when this process ends (mpi).
  virtual void cancel() noexcept = 0;

  /// A wait has reached its limit, and `message` is about to be thrown. If this process then does not end in
  /// some seconds, it prints the message and exits.
  virtual void timed_out(const std::string& message) noexcept;

  /// CommError if operations on stream() have failed. Work queued after them has run on undefined data.
  virtual void throw_if_failed() {}
  /// A graph in which operations were captured (core/capture.h) has been launched once more: these bytes and
  /// messages count as sent.
  void launched(std::uint64_t bytes, std::uint64_t messages) {
    bytes_sent_ += bytes;
    messages_sent_ += messages;
  }

  /// Bytes this rank has passed to isend, plus ring_share() of each iallreduce.
  std::uint64_t bytes_sent() const { return bytes_sent_; }
  /// Messages this rank has passed to isend.
  std::uint64_t messages_sent() const { return messages_sent_; }

 protected:
  void count_message(std::size_t bytes) {
    bytes_sent_ += bytes;
    ++messages_sent_;
  }
  std::uint64_t bytes_sent_ = 0, messages_sent_ = 0;
};

/// Sets the phase of a rank for its scope.
class ScopedPhase {
 public:
  ScopedPhase(Transport& transport, Phase phase)
      : collectives_(transport.collectives()), before_(std::exchange(collectives_.phase, phase)) {}
  ~ScopedPhase() { collectives_.phase = before_; }
  ScopedPhase(const ScopedPhase&) = delete;
  ScopedPhase& operator=(const ScopedPhase&) = delete;

 private:
  Collectives& collectives_;
  const Phase before_;
};

/// Sets Collectives::reason for its scope.
class ScopedReason {
 public:
  ScopedReason(Transport& transport, std::string reason) : reason_(transport.collectives().reason) {
    reason_ = std::move(reason);
  }
  ~ScopedReason() { reason_.clear(); }
  ScopedReason(const ScopedReason&) = delete;
  ScopedReason& operator=(const ScopedReason&) = delete;

 private:
  std::string& reason_;
};

/// Runs `body` once per rank on `size` threads, each with its own Transport. When one throws, the others are
/// aborted; afterwards the exception of the lowest rank that failed by itself is rethrown.
void run_thread_ranks(int size, const std::function<void(Transport&)>& body);

/// The transport over MPI_COMM_WORLD. MPI is initialised here (MPI_THREAD_SERIALIZED) and finalised by the
/// destructor. It is not finalised if an exception destroys the object or operations are in flight: the other
/// ranks would not join, so the launcher ends the job when this process exits. Also works without mpirun, as
/// one rank. Messages of more than `largest_message` bytes travel in several parts; equal on all ranks. If a
/// rank does not come, the process ends after the seconds in the environment variable LPSGD_START_TIMEOUT
/// (default 300; 0: never). That is also the limit of collectives until another one is set.
std::unique_ptr<Transport> make_mpi_transport(std::size_t largest_message = std::size_t{1} << 30);
/// What is wrong with that variable, with which ranks meet nevertheless to say it once; empty: nothing.
std::string start_timeout_mistake();

/// Sets the exit status of this process for the case that MPI cannot be finalised in time (mpi_transport.cc).
/// Call it before the transport is destroyed; the default is 0.
void set_mpi_exit_status(int status);

/// What the launcher (mpirun, srun) has set in this process's environment. Needs no initialised MPI.
struct LaunchedAs {
  const char* launcher = nullptr;  // its name; nullptr: none, or an unknown one
  int rank = 0, size = 1;
  bool several_machines = false;  // also false if the environment does not tell
};
/// `variable` returns the value of an environment variable, or nullptr.
LaunchedAs launched_as(const std::function<const char*(const char*)>& variable = ::getenv);

}  // namespace lpsgd
