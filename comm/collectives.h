// The collectives outside the exchange: barrier, broadcast, all-gather and average. Before each of them every
// rank tells every other what it is about to do. So ranks that are at different places end with one error,
// which names both places, instead of waiting for ever or taking bytes that were meant for something else.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <span>
#include <string>
#include <vector>

#include "comm/waiting.h"
#include "core/error.h"

namespace lpsgd {

class Transport;

/// What a run is doing.
enum class Phase : std::uint8_t { start, data, training, evaluation, checkpoint, end };

/// Where in the source a collective is called.
struct Place {
  Place(std::source_location at) : file(at.file_name()), line(at.line()) {}  // NOLINT: for default arguments
  Place(const char* name, unsigned number) : file(name), line(number) {}
  const char* file;
  unsigned line;
};

/// What a rank is about to do with all others. Sent as it lies in memory.
struct CollectiveCall {
  enum class Kind : std::uint8_t { barrier, broadcast, all_gather, average };
  std::uint64_t number = 0;  // counted from 1
  std::uint64_t bytes = 0;   // a rank's part
  std::int32_t root = 0;     // of a broadcast
  std::uint32_t line = 0;
  Kind kind = Kind::barrier;
  Phase phase = Phase::start;
  std::array<char, 46> file{};  // its last characters, filled up with zeros
  bool operator==(const CollectiveCall&) const = default;
};

/// "all_gather of 24 bytes in evaluation (trainer/evaluate.cc:41, call 7)"
std::string text(const CollectiveCall& call);
/// Empty if the calls are the same, else who is where. One call a rank, from the run's rank `first` on; those
/// with number 0 are not known.
std::string difference(std::span<const CollectiveCall> calls, int first = 0);
/// For what a rank has sent that no rank of this program can send: `sent` is a noun, "a text of 9 bytes".
CommError impossible(std::size_t rank, const std::string& sent);
/// "rank 3", "ranks 0, 2-4".
std::string ranks_text(const std::vector<int>& ranks);

/// How long ranks wait for each other.
struct Limits {
  Limit step{600, "exchange.timeout"};
  Limit outside_step{1800, "exchange.timeout_outside_step"};
};

/// The collectives of one rank, by messages with Transport::control_tag. CommError if another rank calls
/// something else, or does not come within the limit.
class Collectives {
 public:
  explicit Collectives(Transport& transport) : transport_(transport) {}

  void barrier(Place at);
  void broadcast(std::span<std::byte> bytes, int root, Place at);
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Place at);
  std::uint64_t average(std::span<float> values, Place at);

  Phase phase = Phase::start;
  Limits limits;
  /// Called before each collective, on its thread; may be empty. It waits for what another thread does with
  /// the transport.
  std::function<void()> before;
  /// Why this rank calls the next collectives, where the others may not: in messages, while it waits for
  /// them.
  std::string reason;
  /// The limit in this phase.
  Limit limit() const { return phase == Phase::training ? limits.step : limits.outside_step; }

 private:
  struct Message {
    std::size_t request;
    int peer;
    bool arrives;  // else it leaves
  };

  void meet(CollectiveCall::Kind kind, int root, std::size_t bytes, Place at);
  void send(std::span<const std::byte> bytes, int to);
  void receive(std::span<std::byte> bytes, int from);
  void wait();
  std::uint64_t average_part(std::span<float> values, std::vector<float>& theirs);

  Transport& transport_;
  std::vector<CollectiveCall> calls_;  // by rank
  std::vector<Message> in_flight_;
};

}  // namespace lpsgd
