#include "comm/unit_layout.h"

#include <algorithm>

namespace lpsgd {
namespace {

/// Of what all but one send: that of number `index` begins after so many others.
std::size_t before(int index, int own) {
  return static_cast<std::size_t>(index < own ? index : index - 1);
}

}  // namespace

UnitLayout::Room UnitLayout::room(std::span<const NumberedUnit> units) const {
  Room room;
  for (const NumberedUnit& u : units) {
    UnitLayout one = *this;
    one.set(*u.unit);
    const auto fit = [](std::size_t& bytes, std::size_t needed) { bytes = std::max(bytes, needed); };
    fit(room.means, u.unit->bytes());
    if (u.unit->owners() != self_.blocks.ranks) {  // without owners
      fit(room.outgoing, u.unit->bytes());
      continue;
    }
    fit(room.outgoing, one.outgoing().bytes);
    fit(room.incoming, one.incoming().bytes);
    if (!self_.has_blocks()) continue;
    fit(room.shares, one.shares().bytes);
    fit(room.incoming_shares, one.incoming_shares().bytes);
    fit(room.summed, one.share_bytes(self_.place()) / sizeof(float));
  }
  return room;
}

ByteRange UnitLayout::outgoing(int owner) const {
  const std::size_t first = self_.has_blocks() ? mean(self_.first_owner()).at : 0;
  return {mean(owner).at - first, unit_->message_bytes(owner)};
}
ByteRange UnitLayout::outgoing() const {
  return {0, unit_->message_bytes(self_.first_owner(), self_.owners())};
}
ByteRange UnitLayout::incoming(int block) const {
  const std::size_t own = unit_->message_bytes(self_.owner());
  return {own * before(block, self_.block()), own};
}
ByteRange UnitLayout::incoming() const {
  return {0, unit_->message_bytes(self_.owner()) * static_cast<std::size_t>(self_.owners() - 1)};
}
ByteRange UnitLayout::mean(int owner, int count) const {
  return {unit_->message[static_cast<std::size_t>(owner)], unit_->message_bytes(owner, count)};
}

std::size_t UnitLayout::share_bytes(int place) const {
  return static_cast<std::size_t>(unit_->values[static_cast<std::size_t>(place)]) * sizeof(float);
}
ByteRange UnitLayout::share(int place) const {
  ByteRange share{0, share_bytes(place)};
  for (int earlier = 0; earlier < place; ++earlier) share.at += share_bytes(earlier);
  return share;
}
ByteRange UnitLayout::shares() const {
  return {0, share(self_.blocks.size - 1).end()};
}
ByteRange UnitLayout::incoming_share(int place) const {
  const std::size_t own = share_bytes(self_.place());
  return {own * before(place, self_.place()), own};
}
ByteRange UnitLayout::incoming_shares() const {
  return {0, share_bytes(self_.place()) * static_cast<std::size_t>(self_.blocks.size - 1)};
}

}  // namespace lpsgd
