// Some consecutive ranks of a transport as a transport of their own.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "comm/transport.h"

namespace lpsgd {

/// The ranks [first, first + size) of `all`, which outlives it and of which this rank is one. Ranks that call
/// `all` and ranks that call this in between must keep one order. It has no sum of its own (iallreduce).
std::unique_ptr<Transport> make_block_transport(Transport& all, int first, int size);

/// The first rank and the number of ranks of a block.
struct Block {
  int first = 0, size = 1;
};
/// ConfigError about the key of this name unless blocks of this size (0: those of machines) divide the ranks.
void check_block_size(std::int64_t size, int ranks, std::string_view key);
/// This rank's block: `ranks` consecutive ones, or with 0 those of its machine. Throws ConfigError, about the
/// key of this name, unless all ranks are in consecutive blocks of one size. Collective.
Block block_of(Transport& all, int ranks, std::string_view key);

}  // namespace lpsgd
