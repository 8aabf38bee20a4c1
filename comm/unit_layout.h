// Where one rank's messages of a unit lie in its buffers, one for each kind of message.
#pragma once

#include <cstddef>
#include <span>

#include "comm/coder.h"

namespace lpsgd {

struct ByteRange {
  std::size_t at = 0, bytes = 0;
  std::size_t end() const { return at + bytes; }
  std::span<std::byte> of(std::byte* buffer) const { return {buffer + at, bytes}; }
};

class UnitLayout {
 public:
  explicit UnitLayout(const RankPlace& self) : self_(self) {}

  /// Bytes of the buffers, as many as the largest of the units needs. `outgoing` also holds units without
  /// owners.
  struct Room {
    std::size_t outgoing = 0, incoming = 0, means = 0, shares = 0, incoming_shares = 0;
    std::size_t summed = 0;  // values of a block's mean
  };
  Room room(std::span<const NumberedUnit> units) const;

  /// All that follows is of this unit.
  void set(const Unit& unit) { unit_ = &unit; }
  const Unit& unit() const { return *unit_; }

  ByteRange outgoing(int owner) const;  // of the owners at the own place; without blocks of all
  ByteRange outgoing() const;           // of all of these
  ByteRange incoming(int block) const;  // of another block
  ByteRange incoming() const;           // of all others
  ByteRange mean(int owner, int count = 1) const;
  ByteRange share(int place) const;
  ByteRange shares() const;                   // of all places
  ByteRange incoming_share(int place) const;  // of another place
  ByteRange incoming_shares() const;
  /// Where a segment's values begin in a share.
  static std::size_t in_share(const Segment& s) { return static_cast<std::size_t>(s.value) * sizeof(float); }

 private:
  std::size_t share_bytes(int place) const;

  RankPlace self_;
  const Unit* unit_ = nullptr;
};

}  // namespace lpsgd
