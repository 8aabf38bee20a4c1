#include "trainer/replica_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/agree.h"
#include "core/checksum.h"
#include "core/error.h"
#include "core/log.h"

namespace lpsgd {

namespace {

std::uint64_t checksum(std::span<const float> values) {
  return checksum64(std::as_bytes(values));
}

/// Every rank's `mine`, rank by rank.
std::vector<std::uint64_t> gather(Transport& transport, std::span<const std::uint64_t> mine) {
  std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(transport.size()));
  transport.all_gather(std::as_bytes(mine), std::as_writable_bytes(std::span(all)));
  return all;
}

/// Ranks that hold the same, the largest group first; groups of one size by their lowest rank.
std::vector<std::vector<int>> groups_of(std::span<const std::uint64_t> checksums) {
  std::map<std::uint64_t, std::vector<int>> by_checksum;
  for (std::size_t r = 0; r < checksums.size(); ++r) by_checksum[checksums[r]].push_back(static_cast<int>(r));
  std::vector<std::vector<int>> groups;
  for (auto& [unused, ranks] : by_checksum) groups.push_back(std::move(ranks));
  std::sort(groups.begin(), groups.end(), [](const std::vector<int>& a, const std::vector<int>& b) {
    return a.size() != b.size() ? a.size() > b.size() : a.front() < b.front();
  });
  return groups;
}

/// "rank 1 differs from ranks 0, 2"; where there is no majority, "rank 0 and rank 1 differ".
std::string who_differs(const std::vector<std::vector<int>>& groups, int ranks) {
  const std::vector<int>& largest = groups.front();
  if (2 * static_cast<int>(largest.size()) <= ranks) {
    std::vector<std::string> names;
    for (const std::vector<int>& group : groups) names.push_back(ranks_text(group));
    return fmt::format("{} differ", fmt::join(names, " and "));
  }
  std::vector<int> others;
  for (auto group = groups.begin() + 1; group != groups.end(); ++group)
    others.insert(others.end(), group->begin(), group->end());
  std::sort(others.begin(), others.end());
  return fmt::format("{} differ{} from {}", ranks_text(others), others.size() == 1 ? "s" : "",
                     ranks_text(largest));
}

/// The first element in which any rank's `mine` is not that of rank `reference`, or -1.
std::int64_t first_difference(Transport& transport, std::span<const float> mine, int reference) {
  std::vector<float> expected(mine.begin(), mine.end());
  transport.broadcast(std::as_writable_bytes(std::span(expected)), reference);
  const auto bits = [](float a, float b) {
    return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
  };
  const auto at = std::mismatch(mine.begin(), mine.end(), expected.begin(), bits).first - mine.begin();
  const auto found = static_cast<std::uint64_t>(at);
  const std::vector<std::uint64_t> all = gather(transport, {&found, 1});
  const std::uint64_t first = *std::min_element(all.begin(), all.end());
  return first == mine.size() ? -1 : static_cast<std::int64_t>(first);
}

}  // namespace

void fields(config::Visitor& v, BitFlip& flip) {
  v.required();
  v.field("step", flip.step, "after so many steps since the start of the run", {.min = 1, .max = 1e18});
  v.field("rank", flip.rank, "the rank", {.min = 0, .max = 1e9});
  v.field("tensor", flip.tensor, "the weights' name; empty: the first tensor");
  v.field("element", flip.element, "the weight's place in the tensor", {.min = 0, .max = 1e18});
  v.field("bit", flip.bit, "0: the lowest of the mantissa, 31: the sign", {.min = 0, .max = 31});
}

ReplicaCheck::ReplicaCheck(std::int64_t every, const BitFlip& flip, Transport& transport, Network& network,
                           Optimizer& optimizer)
    : every_(every), flip_(flip), transport_(transport), network_(network) {
  if (every_ > 0 || flip_.planned()) host_.emplace(network, optimizer.arenas());
  if (!flip_.planned()) return;
  const TensorInfo* tensor = nullptr;
  for (const TensorArena& arena : {TensorArena{&network.tensors(), host_->parameters()}, host_->frozen()})
    for (const TensorInfo& t : *arena.tensors)
      if (tensor == nullptr && (flip_.tensor.empty() || t.name == flip_.tensor)) {
        tensor = &t;
        flipped_ = arena.of(t);
      }
  if (tensor == nullptr)
    throw ConfigError(fmt::format("exchange.inject.tensor: the network has no '{}'", flip_.tensor));
  if (flip_.element >= tensor->elements)
    throw ConfigError(fmt::format("exchange.inject.element: '{}' has {} elements, so {} is not one of them",
                                  tensor->name, tensor->elements, flip_.element));
  if (flip_.rank >= transport.size())
    throw ConfigError(fmt::format("exchange.inject.rank: there are {} ranks, so {} is not one of them",
                                  transport.size(), flip_.rank));
}

void ReplicaCheck::after_step(std::int64_t steps, Comparable comparable) {
  if (flip_.planned() && steps == flip_.step && transport_.rank() == flip_.rank) flip();
  due_ = due_ || (every_ > 0 && steps % every_ == 0);
  if (due_) compare(steps, comparable);
}

void ReplicaCheck::before_checkpoint(std::int64_t steps, Comparable comparable) {
  if (every_ > 0 && compared_ != steps) compare(steps, comparable);
}

void ReplicaCheck::flip() {
  host_->download();
  float& value = flipped_[static_cast<std::size_t>(flip_.element)];
  const float before = value;
  value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ (std::uint32_t{1} << flip_.bit));
  host_->upload();
  log::warn("exchange.inject: after step {} a weight of '{}' was changed from {} to {}", flip_.step - 1,
            flip_.tensor.empty() ? network_.tensors().front().name : flip_.tensor, before, value);
}

void ReplicaCheck::compare(std::int64_t steps, Comparable comparable) {
  if (comparable == Comparable::nothing) return;
  host_->download();
  compared_ = steps;
  due_ = false;
  const std::vector<TensorInfo>* const trained = &network_.tensors();
  std::vector<std::pair<std::string, TensorArena>> arenas{{"weights", {trained, host_->parameters()}},
                                                          {"frozen weights", host_->frozen()}};
  if (comparable == Comparable::all)
    for (const NamedArena& arena : host_->arenas())
      arenas.push_back({arena.name + " values", {trained, arena.values}});
  std::vector<std::uint64_t> whole;
  for (const auto& [kind, arena] : arenas) whole.push_back(checksum(arena.values));
  const std::vector<std::uint64_t> wholes = gather(transport_, whole);
  bool equal = true;
  for (std::size_t i = 0; i < wholes.size(); ++i) equal &= wholes[i] == wholes[i % whole.size()];
  if (equal) return;

  const auto ranks = static_cast<std::size_t>(transport_.size());
  for (const auto& [kind, arena] : arenas) {
    const std::vector<TensorInfo>& tensors = *arena.tensors;
    if (arena.values.empty()) continue;
    std::vector<std::uint64_t> mine;
    for (const TensorInfo& tensor : tensors) mine.push_back(checksum(arena.of(tensor)));
    const std::vector<std::uint64_t> all = gather(transport_, mine);
    std::vector<std::size_t> different;
    for (std::size_t t = 0; t < tensors.size(); ++t)
      for (std::size_t r = 1; r < ranks; ++r)
        if (all[r * tensors.size() + t] != all[t]) {
          different.push_back(t);
          break;
        }
    if (different.empty()) continue;
    const std::size_t first = different.front();
    std::vector<std::uint64_t> of_first(ranks);
    for (std::size_t r = 0; r < ranks; ++r) of_first[r] = all[r * tensors.size() + first];
    const std::vector<std::vector<int>> groups = groups_of(of_first);
    const std::int64_t element =
        first_difference(transport_, arena.of(tensors[first]), groups.front().front());
    throw ReplicaError(fmt::format(
        "step {}: the replicas are not equal: in the {} of '{}' {}, from element {} on; {} of {} tensors "
        "differ",
        steps - 1, kind, tensors[first].name, who_differs(groups, transport_.size()), element,
        different.size(), tensors.size()));
  }
  throw ReplicaError(
      fmt::format("step {}: the checksums of the replicas' arenas differ, but no tensor does", steps - 1));
}

}  // namespace lpsgd
