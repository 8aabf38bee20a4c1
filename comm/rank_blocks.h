// Ranks in blocks, as of a cluster's machines: consecutive ranks, equally many in each.
#pragma once

namespace lpsgd {

/// Rank r is in block r / size, at place r mod size of it. Blocks of one rank: no blocks.
///
/// Owners are numbered by place, then by block, so that the owners at one place are consecutive. Without
/// blocks an owner's number is its rank.
struct RankBlocks {
  int ranks = 1, size = 1;

  int count() const { return ranks / size; }
  int block_of(int rank) const { return rank / size; }
  int place_of(int rank) const { return rank % size; }
  int rank_at(int block, int place) const { return block * size + place; }

  int owner_of(int rank) const { return place_of(rank) * count() + block_of(rank); }
  int block_of_owner(int owner) const { return owner % count(); }
  int place_of_owner(int owner) const { return owner / count(); }
  int rank_of(int owner) const { return rank_at(block_of_owner(owner), place_of_owner(owner)); }
  /// The owners at a place: `count()` from this one on.
  int first_owner(int place) const { return place * count(); }

  bool operator==(const RankBlocks&) const = default;
};

/// One of the ranks.
struct RankPlace {
  RankBlocks blocks;
  int rank = 0;

  bool has_blocks() const { return blocks.size > 1; }
  int block() const { return blocks.block_of(rank); }
  int place() const { return blocks.place_of(rank); }
  int owner() const { return blocks.owner_of(rank); }
  /// Those at its place.
  int owners() const { return blocks.count(); }
  int first_owner() const { return blocks.first_owner(place()); }
};

}  // namespace lpsgd
