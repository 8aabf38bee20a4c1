// The plan of an exchange: how tensors are cut and packed into units of work, made once, from sizes only, so
// that every rank makes the same plan without communication.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/rank_blocks.h"

namespace lpsgd {

class Codec;
struct ExchangeTensor;

/// Consecutive buckets of one tensor that belong to one owner.
struct Segment {
  std::size_t tensor = 0;
  std::int64_t first = 0, n = 0;  // elements [first, first + n), in the codec's order
  std::size_t at = 0;             // where its records start in the owner's message, in bytes
  std::int64_t value = 0;         // how many values of owners at the same place come before its own
};

/// What one message to each owner (round 1) and one from each owner (round 2) carry. Owners have the numbers
/// of RankBlocks.
struct Unit {
  std::vector<Segment> segments;     // by owner
  std::vector<std::size_t> begin;    // segments [begin[o], begin[o + 1]) belong to owner o
  std::vector<std::size_t> message;  // owner o's message is bytes [message[o], message[o + 1]) of the unit
  std::vector<std::int64_t> values;  // of the owners at each place
  std::size_t ready_after = 0;       // ready once this many tensors are submitted

  std::span<const Segment> owned_by(int owner, int count = 1) const {
    const auto o = static_cast<std::size_t>(owner), end = static_cast<std::size_t>(owner + count);
    return std::span(segments).subspan(begin[o], begin[end] - begin[o]);
  }
  std::size_t message_bytes(int owner, int count = 1) const {
    const auto o = static_cast<std::size_t>(owner), end = static_cast<std::size_t>(owner + count);
    return message[end] - message[o];
  }
  std::size_t bytes() const { return message.back(); }
  int owners() const { return static_cast<int>(begin.size()) - 1; }
};

/// A unit of the plan, by its number, in one step.
struct UnitOfStep {
  std::uint32_t step = 0;
  std::size_t unit = 0;
  bool operator==(const UnitOfStep&) const = default;
};

struct PlanOptions {
  RankBlocks owners = {};
  std::int64_t chunk_bytes = 1 << 20;  // float32 bytes of a tensor per unit and owner, rounded to buckets
  std::int64_t pack_bytes = 1 << 18;   // tensors below this are packed until they hold as much
  /// Positions in the order: no pack goes on beyond one of them.
  std::vector<std::size_t> ends = {};
  /// Of a simulated exchange, whose only owner has all: a unit has as many bytes as if there were this many.
  int simulated_owners = 0;
};

/// Bytes that all ranks together send in an exchange of a tensor of `elements` values, of which one encoded
/// copy has `wire_bytes`: 2(K-1) copies without blocks. With N blocks of B ranks 2(N-1) copies between
/// blocks; within them N(B-1) copies, and as many of the values as float32.
std::uint64_t exchanged_bytes(const RankBlocks& blocks, std::uint64_t wire_bytes, std::int64_t elements);

/// Bytes of one encoded copy of a tensor that is cut for so many owners.
std::uint64_t encoded_bytes_of_stripes(const Codec& codec, std::int64_t elements, int owners);

/// Units in the order in which they become ready when tensors are submitted in `order`.
/// A codec with a table (Codec::table_bytes) writes it before each stripe, so its stripes are not cut.
std::vector<Unit> make_plan(std::span<const ExchangeTensor> tensors, std::span<const std::size_t> order,
                            const PlanOptions& options);

}  // namespace lpsgd
