#include "comm/block_transport.h"

#include <fmt/format.h>

#include <vector>

#include "comm/transport_over.h"
#include "core/error.h"

namespace lpsgd {

namespace {

class BlockTransport final : public TransportOver {
 public:
  BlockTransport(Transport& all, int first, int size) : TransportOver(all), first_(first), size_(size) {
    require(first <= all.rank() && all.rank() < first + size && first + size <= all.size(),
            "a block has consecutive ranks, and this one");
    collectives_.limits = all.collectives().limits;
  }

  int rank() const override { return inner_.rank() - first_; }
  int size() const override { return size_; }
  int rank_in_run(int rank) const override { return inner_.rank_in_run(first_ + rank); }
  bool ordered() const override { return inner_.ordered(); }
  StreamView stream() const override { return inner_.stream(); }
  void begin_group() override { inner_.begin_group(); }
  void end_group() override { inner_.end_group(); }

  Request isend(std::span<const std::byte> bytes, int to, int tag) override {
    if (tag != control_tag) count_message(bytes.size());
    return request_of(tag, channel(tag).isend(bytes, first_ + to, tag));
  }
  Request irecv(std::span<std::byte> bytes, int from, int tag) override {
    return request_of(tag, channel(tag).irecv(bytes, first_ + from, tag));
  }
  Request iallreduce(std::span<float>) override { throw CommError("a block of ranks has no all-reduce"); }
  bool test(Request request) override {
    return (request % 2 == 0 ? inner_ : inner_.control()).test(request / 2);
  }
  void reserve(std::size_t per_peer) override { inner_.reserve(per_peer); }
  Collectives& collectives() override { return collectives_; }

 private:
  Transport& channel(int tag) { return tag == control_tag ? inner_.control() : inner_; }
  static Request request_of(int tag, Request inner) { return 2 * inner + (tag == control_tag ? 1 : 0); }

  const int first_, size_;
  Collectives collectives_{*this};
};

}  // namespace

std::unique_ptr<Transport> make_block_transport(Transport& all, int first, int size) {
  return std::make_unique<BlockTransport>(all, first, size);
}

void check_block_size(std::int64_t size, int ranks, std::string_view key) {
  if (size > 0 && ranks % size != 0)
    throw ConfigError(fmt::format("{}: {} ranks cannot be divided into blocks of {}", key, ranks, size));
}

Block block_of(Transport& all, int ranks, std::string_view key) {
  check_block_size(ranks, all.size(), key);
  const Block mine = ranks > 0 ? Block{all.rank() / ranks * ranks, ranks}
                               : Block{all.rank() - all.local_rank(), all.local_size()};
  const std::vector<Block> blocks = all.all_gather(mine);
  for (int r = 0; r < all.size(); ++r) {
    const Block& block = blocks[static_cast<std::size_t>(r)];
    if (block.size != mine.size || block.first != r / mine.size * mine.size || all.size() % mine.size != 0)
      throw ConfigError(
          fmt::format("{}: node needs machines with equally many consecutive ranks, but rank {} is one of {} "
                      "from rank {} on; give a number",
                      key, r, block.size, block.first));
  }
  return mine;
}

}  // namespace lpsgd
