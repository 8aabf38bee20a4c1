#include "comm/exchange_plan.h"

#include <algorithm>
#include <utility>

#include "comm/exchange_tensor.h"

namespace lpsgd {
namespace {

class UnitBuilder {
 public:
  explicit UnitBuilder(const RankBlocks& owners)
      : owners_(owners), segments_(static_cast<std::size_t>(owners.ranks)) {}

  void add(int rank, std::size_t tensor, std::int64_t first, std::int64_t last) {
    if (last > first)
      segments_[static_cast<std::size_t>(owners_.owner_of(rank))].push_back({tensor, first, last - first});
  }

  /// So many more bytes in the first owner's message, of which nothing is made.
  void add_bytes(std::size_t bytes) { more_ += bytes; }

  void close(std::span<const ExchangeTensor> tensors, std::size_t ready_after, std::vector<Unit>& units) {
    Unit unit;
    unit.ready_after = ready_after;
    unit.begin.push_back(0);
    unit.message.push_back(0);
    for (std::size_t owner = 0; owner < segments_.size(); ++owner) {
      std::vector<Segment>& owned = segments_[owner];
      if (owner % static_cast<std::size_t>(owners_.count()) == 0) unit.values.push_back(0);  // the next place
      std::int64_t& values = unit.values.back();
      std::size_t bytes = 0;
      for (Segment& segment : owned) {
        segment.at = bytes;
        segment.value = values;
        bytes += tensors[segment.tensor].codec->encoded_bytes(segment.n);
        values += segment.n;
        unit.segments.push_back(segment);
      }
      bytes += std::exchange(more_, 0);
      owned.clear();
      unit.begin.push_back(unit.segments.size());
      unit.message.push_back(unit.message.back() + bytes);
    }
    if (!unit.segments.empty()) units.push_back(std::move(unit));
  }

 private:
  const RankBlocks owners_;
  std::vector<std::vector<Segment>> segments_;  // by owner
  std::size_t more_ = 0;
};

/// Adds the units of the tensors at positions [begin, end) of the order.
void add_units(std::span<const ExchangeTensor> tensors, std::span<const std::size_t> order, std::size_t begin,
               std::size_t end, const PlanOptions& options, std::vector<Unit>& units) {
  constexpr auto value_bytes = static_cast<std::int64_t>(sizeof(float));
  UnitBuilder pack(options.owners);
  std::int64_t packed = 0;
  for (std::size_t position = begin; position < end; ++position) {
    const std::size_t t = order[position];
    const Codec& codec = *tensors[t].codec;
    const std::int64_t elements = tensors[t].info.elements, bucket = codec.bucket();
    if (elements == 0) continue;
    const std::vector<Stripe> parts = stripes(elements, bucket, options.owners.ranks, t);
    const std::size_t more = options.simulated_owners > 0
                                 ? encoded_bytes_of_stripes(codec, elements, options.simulated_owners) -
                                       codec.encoded_bytes(elements)  // tables of the other stripes
                                 : 0;
    if (elements * value_bytes < options.pack_bytes) {
      for (const Stripe& part : parts) pack.add(part.owner, t, part.first, part.last);
      pack.add_bytes(more);
      packed += elements * value_bytes;
      if (packed >= options.pack_bytes) {
        pack.close(tensors, position + 1, units);
        packed = 0;
      }
      continue;
    }
    const auto buckets = [&](std::int64_t n) { return (n + bucket - 1) / bucket; };
    std::int64_t max_buckets = 1;
    for (const Stripe& part : parts) max_buckets = std::max(max_buckets, buckets(part.last - part.first));
    const std::int64_t per_chunk = std::max<std::int64_t>(1, options.chunk_bytes / (bucket * value_bytes));
    const std::int64_t chunks = codec.table_bytes() > 0 ? 1 : (max_buckets + per_chunk - 1) / per_chunk;
    for (std::int64_t c = 0; c < chunks; ++c) {
      UnitBuilder chunk(options.owners);
      for (const Stripe& part : parts) {
        const std::int64_t n = buckets(part.last - part.first);
        chunk.add(part.owner, t, part.first + n * c / chunks * bucket,
                  std::min(part.last, part.first + n * (c + 1) / chunks * bucket));
      }
      chunk.add_bytes(more);  // a stripe with a table is one chunk
      chunk.close(tensors, position + 1, units);
    }
  }
  pack.close(tensors, end, units);
}

}  // namespace

std::uint64_t exchanged_bytes(const RankBlocks& blocks, std::uint64_t wire_bytes, std::int64_t elements) {
  const auto count = static_cast<std::uint64_t>(blocks.count());
  const std::uint64_t within = count * static_cast<std::uint64_t>(blocks.size - 1);
  return 2 * (count - 1) * wire_bytes +
         within * (wire_bytes + static_cast<std::uint64_t>(elements) * sizeof(float));
}

std::uint64_t encoded_bytes_of_stripes(const Codec& codec, std::int64_t elements, int owners) {
  std::uint64_t bytes = 0;
  for (const Stripe& stripe : stripes(elements, codec.bucket(), owners, 0))
    bytes += codec.encoded_bytes(stripe.last - stripe.first);
  return bytes;
}

std::vector<Unit> make_plan(std::span<const ExchangeTensor> tensors, std::span<const std::size_t> order,
                            const PlanOptions& options) {
  std::vector<Unit> units;
  std::size_t begin = 0;
  for (const std::size_t end : options.ends)
    add_units(tensors, order, std::exchange(begin, end), end, options, units);
  add_units(tensors, order, begin, order.size(), options, units);
  return units;
}

}  // namespace lpsgd
