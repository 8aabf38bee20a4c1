// Ranks as threads of one process. A message is one copy from the sender's buffer to the receiver's, made by
// the side that posts second.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "comm/backoff.h"
#include "comm/slots.h"
#include "comm/transport.h"
#include "core/error.h"

namespace lpsgd {
namespace {

/// What the other ranks throw when one has failed or called abort().
class PeerFailed final : public CommError {
 public:
  using CommError::CommError;
};

struct Channel;
struct Reduction;

/// An operation of one rank. Only its rank takes and releases it; the peer that matches it copies and sets
/// `state`.
struct Operation {
  enum class State : std::uint8_t { free, pending, matched, done, mismatched };
  std::atomic<State> state{State::free};
  Channel* channel = nullptr;      // of a message
  Reduction* reduction = nullptr;  // of an all-reduce
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  std::size_t bytes = 0;
  int tag = 0;
};

/// The unmatched messages from one rank to another, in the order posted.
struct Channel {
  std::mutex mutex;
  std::vector<Operation*> sends, receives;
};

/// An all-reduce: rank r sums the r-th part of all buffers, in rank order, into all of them.
struct Reduction {
  std::vector<float*> buffers;
  std::size_t values = 0;
  int joined = 0, summed = 0, left = 0;
  bool mismatched = false;
};

struct Hub {
  explicit Hub(int ranks)
      : size(ranks), channels(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks)) {}
  Channel& channel(int from, int to) {
    return channels[static_cast<std::size_t>(from) * static_cast<std::size_t>(size) +
                    static_cast<std::size_t>(to)];
  }
  void add_spare() {
    spare.push_back(std::make_unique<Reduction>());
    spare.back()->buffers.resize(static_cast<std::size_t>(size));
  }
  bool ended() const { return ended_by.load(std::memory_order_acquire) >= 0; }
  void end(int rank) {  // by the first rank that calls it
    int none = -1;
    ended_by.compare_exchange_strong(none, rank, std::memory_order_acq_rel);
  }

  const int size;
  std::vector<Channel> channels;
  std::atomic<int> ended_by{-1};  // the rank that ended the job

  std::mutex mutex;                                    // guards what follows and the reductions' counters
  std::vector<std::unique_ptr<Reduction>> reductions;  // number first_reduction and later
  std::vector<std::unique_ptr<Reduction>> spare;
  std::uint64_t first_reduction = 0;
  int summing = 0;  // ranks at work on others' buffers
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(Hub& hub, int rank) : hub_(hub), rank_(rank) {}
  ~ThreadTransport() override { withdraw(); }
  ThreadTransport(const ThreadTransport&) = delete;
  ThreadTransport& operator=(const ThreadTransport&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return hub_.size; }
  const char* name() const override { return "threads"; }
  int local_rank() const override { return rank_; }
  int local_size() const override { return hub_.size; }

  Request isend(std::span<const std::byte> bytes, int to, int tag) override {
    if (tag != control_tag) count_message(bytes.size());
    const auto [request, operation] = take(bytes.size(), tag);
    operation->source = bytes.data();
    Channel& channel = hub_.channel(rank_, to);
    post(channel, *operation, channel.sends, channel.receives);
    return request;
  }
  Request irecv(std::span<std::byte> bytes, int from, int tag) override {
    const auto [request, operation] = take(bytes.size(), tag);
    operation->target = bytes.data();
    Channel& channel = hub_.channel(from, rank_);
    post(channel, *operation, channel.receives, channel.sends);
    return request;
  }
  Request iallreduce(std::span<float> values) override;
  bool test(Request request) override;
  void reserve(std::size_t per_peer) override;

  Collectives& collectives() override { return collectives_; }
  void abort(int) noexcept override {
    hub_.end(rank_);
    withdraw();
  }
  void cancel() noexcept override { abort(1); }

 private:
  std::pair<Request, Operation*> take(std::size_t bytes, int tag);
  bool release(Request request) {  // true, for test()
    operations_[request].state.store(Operation::State::free, std::memory_order_relaxed);
    operations_.give_back(request);
    return true;
  }
  void post(Channel& channel, Operation& mine, std::vector<Operation*>& side,
            std::vector<Operation*>& other_side);
  void advance_reductions();
  void withdraw() noexcept;
  [[noreturn]] void peer_failed() {
    withdraw();
    throw PeerFailed(fmt::format("rank {}: stopped, because rank {} ended the job", rank_,
                                 hub_.ended_by.load(std::memory_order_acquire)));
  }

  Hub& hub_;
  const int rank_;
  Slots<Operation> operations_;
  std::vector<Request> reducing_;  // all-reduces in which this rank has not summed its part yet
  std::uint64_t next_reduction_ = 0;
  Collectives collectives_{*this};
};

std::pair<Transport::Request, Operation*> ThreadTransport::take(std::size_t bytes, int tag) {
  if (hub_.ended()) peer_failed();
  const Request request = operations_.take();
  Operation& operation = operations_[request];
  operation.channel = nullptr;
  operation.reduction = nullptr;
  operation.source = nullptr;
  operation.target = nullptr;
  operation.bytes = bytes;
  operation.tag = tag;
  operation.state.store(Operation::State::pending, std::memory_order_relaxed);
  return {request, &operation};
}

void ThreadTransport::reserve(std::size_t per_peer) {
  const auto ranks = static_cast<std::size_t>(hub_.size);
  const std::size_t operations = (per_peer + 2) * ranks;  // two of a collective
  operations_.reserve(operations);
  reducing_.reserve(operations);
  const auto reserve_one = [&](Channel& channel, std::vector<Operation*> Channel::*side) {
    const std::lock_guard lock(channel.mutex);
    (channel.*side).reserve(per_peer + 1);
  };
  for (int peer = 0; peer < hub_.size; ++peer) {
    reserve_one(hub_.channel(rank_, peer), &Channel::sends);
    reserve_one(hub_.channel(peer, rank_), &Channel::receives);
  }
  // A rank may start its next all-reduces before others have left the last ones.
  const std::lock_guard lock(hub_.mutex);
  hub_.reductions.reserve(2 * per_peer);
  hub_.spare.reserve(2 * per_peer);
  while (hub_.reductions.size() + hub_.spare.size() < 2 * per_peer) hub_.add_spare();
}

void ThreadTransport::post(Channel& channel, Operation& mine, std::vector<Operation*>& side,
                           std::vector<Operation*>& other_side) {
  mine.channel = &channel;
  Operation* peer = nullptr;
  {
    const std::lock_guard lock(channel.mutex);
    const auto match = std::find_if(other_side.begin(), other_side.end(),
                                    [&](const Operation* o) { return o->tag == mine.tag; });
    if (match == other_side.end() || hub_.ended()) {
      side.push_back(&mine);
      return;
    }
    peer = *match;
    other_side.erase(match);
    peer->state.store(Operation::State::matched, std::memory_order_relaxed);
  }
  auto outcome = Operation::State::mismatched;
  if (peer->bytes == mine.bytes) {
    const Operation& from = mine.source != nullptr ? mine : *peer;
    const Operation& to = mine.source != nullptr ? *peer : mine;
    if (mine.bytes > 0) std::memcpy(to.target, from.source, mine.bytes);
    outcome = Operation::State::done;
  }
  mine.state.store(outcome, std::memory_order_relaxed);
  peer->state.store(outcome, std::memory_order_release);
}

bool ThreadTransport::test(Request request) {
  require(request < operations_.size(), "a request that does not exist");
  Operation& operation = operations_[request];
  if (!reducing_.empty()) advance_reductions();
  if (operation.reduction != nullptr) {
    const std::lock_guard lock(hub_.mutex);
    Reduction& reduction = *operation.reduction;
    if (reduction.mismatched)
      throw CommError(fmt::format("rank {}: an all-reduce has different lengths on different ranks", rank_));
    if (reduction.summed == hub_.size) {
      if (++reduction.left == hub_.size) {
        while (!hub_.reductions.empty() && hub_.reductions.front()->left == hub_.size) {
          hub_.spare.push_back(std::move(hub_.reductions.front()));
          hub_.reductions.erase(hub_.reductions.begin());
          ++hub_.first_reduction;
        }
      }
      return release(request);
    }
  }
  switch (operation.state.load(std::memory_order_acquire)) {
    case Operation::State::done:
      return release(request);
    case Operation::State::mismatched:
      throw CommError(fmt::format("rank {}: a message with tag {} has {} bytes here and another size there",
                                  rank_, operation.tag, operation.bytes));
    case Operation::State::free:
      require(false, "a request that is complete already");
      [[fallthrough]];
    default:
      break;
  }
  if (hub_.ended()) peer_failed();
  return false;
}

Transport::Request ThreadTransport::iallreduce(std::span<float> values) {
  bytes_sent_ += ring_share(values.size_bytes());
  const auto [request, operation] = take(values.size_bytes(), 0);
  const std::lock_guard lock(hub_.mutex);
  const std::uint64_t index = next_reduction_++ - hub_.first_reduction;
  if (index == hub_.reductions.size()) {
    if (hub_.spare.empty()) hub_.add_spare();
    Reduction& fresh = *hub_.reductions.emplace_back(std::move(hub_.spare.back()));
    hub_.spare.pop_back();
    fresh.values = values.size();
    fresh.joined = fresh.summed = fresh.left = 0;
    fresh.mismatched = false;
  }
  Reduction& reduction = *hub_.reductions[index];
  if (reduction.values != values.size()) reduction.mismatched = true;
  reduction.buffers[static_cast<std::size_t>(rank_)] = values.data();
  ++reduction.joined;
  operation->reduction = &reduction;
  reducing_.push_back(request);
  return request;
}

void ThreadTransport::advance_reductions() {
  for (std::size_t i = 0; i < reducing_.size();) {
    Reduction& reduction = *operations_[reducing_[i]].reduction;
    {
      const std::lock_guard lock(hub_.mutex);
      if (reduction.joined < hub_.size || reduction.mismatched || hub_.ended()) {
        ++i;
        continue;
      }
      ++hub_.summing;
    }
    constexpr std::size_t block = 2048;
    const auto ranks = static_cast<std::size_t>(hub_.size), me = static_cast<std::size_t>(rank_);
    const std::size_t last = reduction.values * (me + 1) / ranks;
    float sum[block];
    for (std::size_t at = reduction.values * me / ranks; at < last; at += block) {
      const std::size_t n = std::min(block, last - at);
      std::memcpy(sum, reduction.buffers[0] + at, n * sizeof(float));
      for (std::size_t r = 1; r < ranks; ++r) {
        const float* other = reduction.buffers[r] + at;
        for (std::size_t j = 0; j < n; ++j) sum[j] += other[j];
      }
      for (float* buffer : reduction.buffers) std::memcpy(buffer + at, sum, n * sizeof(float));
    }
    reducing_.erase(reducing_.begin() + static_cast<std::ptrdiff_t>(i));
    const std::lock_guard lock(hub_.mutex);
    ++reduction.summed;
    --hub_.summing;
  }
}

// Afterwards no peer reads or writes this rank's buffers.
void ThreadTransport::withdraw() noexcept {
  bool reduces = false;
  for (Operation& operation : operations_) {
    if (operation.state.load(std::memory_order_relaxed) == Operation::State::free) continue;
    if (operation.reduction != nullptr) reduces = true;
    if (Channel* channel = operation.channel) {
      {
        const std::lock_guard lock(channel->mutex);
        std::erase(channel->sends, &operation);
        std::erase(channel->receives, &operation);
      }
      Backoff backoff;
      while (operation.state.load(std::memory_order_acquire) == Operation::State::matched) backoff.pause();
      operation.channel = nullptr;
    }
  }
  if (!reduces) return;
  hub_.end(rank_);  // sums need all buffers: a rank that leaves one ends the job
  for (Backoff backoff;; backoff.pause()) {
    const std::lock_guard lock(hub_.mutex);
    if (hub_.summing == 0) break;
  }
}

}  // namespace

void run_thread_ranks(int size, const std::function<void(Transport&)>& body) {
  require(size >= 1, "run_thread_ranks needs at least one rank");
  Hub hub(size);
  const auto ranks = static_cast<std::size_t>(size);
  std::vector<std::exception_ptr> failures(ranks);
  std::vector<bool> is_origin(ranks, false);
  std::mutex mutex;
  const auto run = [&](int rank) {
    prefer_short_sleeps();
    ThreadTransport transport(hub, rank);
    const auto fail = [&](bool own) {
      transport.abort(1);
      const std::lock_guard lock(mutex);
      failures[static_cast<std::size_t>(rank)] = std::current_exception();
      is_origin[static_cast<std::size_t>(rank)] = own;
    };
    try {
      body(transport);
    } catch (const PeerFailed&) {
      fail(false);
    } catch (...) {
      fail(true);
    }
  };

  std::vector<std::thread> threads;
  try {
    for (int rank = 0; rank < size; ++rank) threads.emplace_back(run, rank);
  } catch (...) {  // a thread could not start: the running ranks would wait for its rank for ever
    ThreadTransport(hub, static_cast<int>(threads.size())).abort(1);
    for (std::thread& thread : threads) thread.join();
    throw;
  }
  for (std::thread& thread : threads) thread.join();
  let_process_live();
  for (const bool own : {true, false})
    for (std::size_t r = 0; r < ranks; ++r)
      if (failures[r] && is_origin[r] == own) std::rethrow_exception(failures[r]);
}

}  // namespace lpsgd
