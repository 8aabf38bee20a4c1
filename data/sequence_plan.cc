#include "data/sequence_plan.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <utility>

#include "core/philox.h"
#include "data/batch_source.h"

namespace lpsgd {

namespace {

using Order = std::vector<std::int64_t>;

Order order_of(std::span<const std::int64_t> lengths, const SequencePlanOptions& o) {
  return epoch_order(static_cast<std::int64_t>(lengths.size()), o.training && o.shuffle, o.seed, o.epoch);
}

/// Writes the positions of sequences that are sorted by length, as whole_sequences() describes.
void deal(std::span<const std::int64_t> sorted, std::int64_t* positions) {
  if (sorted.size() < 2) {
    std::copy(sorted.begin(), sorted.end(), positions);
    return;
  }
  Order first, second;
  for (std::size_t i = 0; i < sorted.size(); ++i)
    (i % 4 == 0 || i % 4 == 3 ? first : second).push_back(sorted[i]);
  deal(first, positions);
  deal(second, positions + first.size());
}

void shuffle_batches(std::vector<std::int64_t>& batches, const SequencePlanOptions& o) {
  PhiloxSequence random(o.seed, RandomUse::shuffle, static_cast<std::uint32_t>(o.epoch), 1);
  for (std::size_t left = batches.size(); left > 1; --left)
    std::swap(batches[left - 1], batches[random.below(static_cast<std::uint32_t>(left))]);
}

std::int64_t rounded_up(std::int64_t n, std::int64_t by) {
  return (n + by - 1) / by;
}

}  // namespace

SequencePlan whole_sequences(std::span<const std::int64_t> lengths, std::int64_t window,
                             const SequencePlanOptions& options) {
  const std::int64_t size = static_cast<std::int64_t>(lengths.size()), positions = options.positions;
  const bool shuffled = options.training && options.shuffle;
  SequencePlan plan(positions);
  plan.resize(options.training ? size / positions : rounded_up(size, positions));
  Order order = order_of(lengths, options);
  order.resize(static_cast<std::size_t>(std::min(size, plan.batches() * positions)));

  const auto longer = [&](std::int64_t a, std::int64_t b) {
    return lengths[static_cast<std::size_t>(a)] > lengths[static_cast<std::size_t>(b)];
  };
  const std::int64_t sorted = shuffled ? window * positions : options.training ? positions : size;
  for (std::int64_t begin = 0; begin < std::ssize(order); begin += sorted)
    std::stable_sort(order.begin() + begin, order.begin() + std::min(begin + sorted, std::ssize(order)),
                     longer);

  std::vector<std::int64_t> batches(static_cast<std::size_t>(plan.batches()));
  std::iota(batches.begin(), batches.end(), std::int64_t{0});
  if (shuffled) shuffle_batches(batches, options);
  Order dealt(static_cast<std::size_t>(positions));
  for (std::int64_t b = 0; b < plan.batches(); ++b) {
    const std::int64_t begin = batches[static_cast<std::size_t>(b)] * positions;
    const std::int64_t count = std::min(positions, std::ssize(order) - begin);
    deal(std::span(order).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)),
         dealt.data());
    for (std::int64_t p = 0; p < count; ++p) {
      const std::int64_t s = dealt[static_cast<std::size_t>(p)];
      plan.at(b, p) = {s, 0, lengths[static_cast<std::size_t>(s)], false};
    }
  }
  return plan;
}

SequencePlan carried_sequences(std::span<const std::int64_t> lengths, std::int64_t truncate,
                               const SequencePlanOptions& options) {
  std::int64_t pieces = 0;
  for (const std::int64_t length : lengths) pieces += rounded_up(length, truncate);
  SequencePlan plan(options.positions);
  if (options.training) plan.resize(pieces / options.positions);

  using Free = std::pair<std::int64_t, std::int64_t>;  // from which batch on, which position
  std::priority_queue<Free, std::vector<Free>, std::greater<>> free;
  for (std::int64_t p = 0; p < options.positions; ++p) free.push({0, p});
  for (const std::int64_t s : order_of(lengths, options)) {
    const auto [begin, position] = free.top();
    free.pop();
    const std::int64_t length = lengths[static_cast<std::size_t>(s)];
    const std::int64_t end = begin + rounded_up(length, truncate);
    if (!options.training && end > plan.batches()) plan.resize(end);
    for (std::int64_t b = begin; b < std::min(end, plan.batches()); ++b) {
      const std::int64_t first = (b - begin) * truncate;
      plan.at(b, position) = {s, first, std::min(truncate, length - first), b > begin};
    }
    free.push({end, position});
  }
  return plan;
}

SequencePlan token_streams(std::int64_t tokens, std::int64_t truncate, const SequencePlanOptions& options) {
  const std::int64_t positions = options.positions;
  SequencePlan plan(positions);
  const std::int64_t part = tokens / positions;  // rounded down; evaluation's longest has one more
  plan.resize(options.training ? part / truncate : rounded_up(rounded_up(tokens, positions), truncate));
  for (std::int64_t p = 0; p < positions; ++p) {
    const std::int64_t begin = options.training ? p * part : p * tokens / positions;
    const std::int64_t end = options.training ? begin + part : (p + 1) * tokens / positions;
    for (std::int64_t b = 0; b < plan.batches(); ++b) {
      const std::int64_t first = std::min(begin + b * truncate, end);
      plan.at(b, p) = {p, first, std::min(end - first, truncate), b > 0};
    }
  }
  return plan;
}

}  // namespace lpsgd
