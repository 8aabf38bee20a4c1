#include "comm/collectives.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "comm/backoff.h"
#include "comm/transport.h"

namespace lpsgd {

static_assert(std::has_unique_object_representations_v<CollectiveCall>, "all of its bytes are sent");

std::string text(const CollectiveCall& call) {
  constexpr const char* kinds[] = {"barrier", "broadcast", "all_gather"};
  constexpr const char* phases[] = {"start", "data", "training", "evaluation", "checkpoint", "end"};
  const auto name = [](std::span<const char* const> names, auto value) {
    const auto index = static_cast<std::size_t>(value);
    return index < names.size() ? names[index] : "?";  // another version's
  };
  std::string what = name(kinds, call.kind);
  if (call.kind != CollectiveCall::Kind::barrier) what += fmt::format(" of {} bytes", call.bytes);
  if (call.kind == CollectiveCall::Kind::broadcast) what += fmt::format(" from rank {}", call.root);
  const std::string_view file(call.file.data(), ::strnlen(call.file.data(), call.file.size()));
  return fmt::format("{} in {} ({}:{}, call {})", what, name(phases, call.phase), file, call.line,
                     call.number);
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::vector<std::string> runs;
  for (std::size_t i = 0, last = 0; i < ranks.size(); i = last + 1) {
    for (last = i; last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1;) ++last;
    runs.push_back(last == i ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[last]));
  }
  return fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "", fmt::join(runs, ", "));
}

CommError impossible(std::size_t rank, const std::string& sent) {
  return CommError(fmt::format(
      "rank {} has sent {}: it runs another program, or its memory or the network is damaged", rank, sent));
}

std::string difference(std::span<const CollectiveCall> calls) {
  const auto known = [](const CollectiveCall& call) { return call.number > 0; };
  const auto first = std::find_if(calls.begin(), calls.end(), known);
  const auto other =
      std::find_if(first, calls.end(), [&](const auto& call) { return known(call) && call != *first; });
  if (other == calls.end()) return "";
  const auto ranks_at = [&](const CollectiveCall& place) {
    std::vector<int> ranks;
    for (std::size_t r = 0; r < calls.size(); ++r)
      if (calls[r] == place) ranks.push_back(static_cast<int>(r));
    return ranks;
  };
  const std::vector<int> some = ranks_at(*first), others = ranks_at(*other);
  const auto named = static_cast<std::ptrdiff_t>(some.size() + others.size());
  const auto more = std::count_if(calls.begin(), calls.end(), known) - named;
  return fmt::format("the ranks are at different places: {} {} at {}, {} at {}{}", ranks_text(others),
                     others.size() > 1 ? "are" : "is", text(*other), ranks_text(some), text(*first),
                     more > 0 ? fmt::format(", {} elsewhere", more) : "");
}

void Collectives::meet(CollectiveCall::Kind kind, int root, std::size_t bytes, Place at) {
  if (before) before();
  const auto ranks = static_cast<std::size_t>(transport_.size());
  const auto me = static_cast<std::size_t>(transport_.rank());
  calls_.resize(ranks);
  CollectiveCall call{calls_[me].number + 1, bytes, root, at.line, kind, phase, {}};
  std::string_view file(at.file);
  while (file.starts_with("../")) file.remove_prefix(3);  // the build's folder does not matter
  file.substr(file.size() - std::min(file.size(), call.file.size())).copy(call.file.data(), call.file.size());
  std::fill(calls_.begin(), calls_.end(), CollectiveCall{});
  calls_[me] = call;
  for (std::size_t shift = 1; shift < ranks; ++shift) {
    const std::size_t peer = (me + shift) % ranks;
    receive(std::as_writable_bytes(std::span(&calls_[peer], 1)), static_cast<int>(peer));
    send(std::as_bytes(std::span(&calls_[me], 1)), static_cast<int>(peer));
  }
  wait();
}

void Collectives::send(std::span<const std::byte> bytes, int to) {
  in_flight_.push_back({transport_.isend(bytes, to, Transport::control_tag), to, false});
}

void Collectives::receive(std::span<std::byte> bytes, int from) {
  in_flight_.push_back({transport_.irecv(bytes, from, Transport::control_tag), from, true});
}

void Collectives::wait() {
  const CollectiveCall& mine = calls_[static_cast<std::size_t>(transport_.rank())];
  Patience patience(limit());
  for (Backoff backoff; !in_flight_.empty();) {
    bool differs = false;
    int damaged = -1;  // the rank whose record is none
    const auto arrived = std::erase_if(in_flight_, [&](const Message& m) {
      if (!transport_.test(m.request)) return false;
      const CollectiveCall& theirs = calls_[static_cast<std::size_t>(m.peer)];
      differs |= m.arrives && theirs != mine;
      if (m.arrives && theirs.number == 0) damaged = m.peer;
      return true;
    });
    if (damaged >= 0) {
      transport_.cancel();
      throw impossible(static_cast<std::size_t>(damaged), "no record of a collective");
    }
    if (differs) {
      transport_.cancel();
      throw CommError(difference(calls_));
    }
    if (arrived > 0) {
      backoff.reset();
      patience.reset();
      continue;
    }
    backoff.pause();
    if (!patience.due()) continue;
    std::vector<int> missing;
    for (const Message& m : in_flight_) missing.push_back(m.peer);
    std::sort(missing.begin(), missing.end());
    missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
    patience.report(transport_, fmt::format("{} has waited {:.0f} s for {}", text(mine), patience.waited(),
                                            ranks_text(missing)));
  }
}

void Collectives::barrier(Place at) {
  meet(CollectiveCall::Kind::barrier, 0, 0, at);
}

void Collectives::broadcast(std::span<std::byte> bytes, int root, Place at) {
  meet(CollectiveCall::Kind::broadcast, root, bytes.size(), at);
  if (transport_.rank() != root)
    receive(bytes, root);
  else
    for (int r = 0; r < transport_.size(); ++r)
      if (r != root) send(bytes, r);
  wait();
}

void Collectives::all_gather(std::span<const std::byte> mine, std::span<std::byte> all, Place at) {
  const std::size_t n = mine.size();
  const auto ranks = static_cast<std::size_t>(transport_.size());
  const auto me = static_cast<std::size_t>(transport_.rank());
  require(all.size() == n * ranks, "all_gather needs one part per rank");
  meet(CollectiveCall::Kind::all_gather, 0, n, at);
  for (std::size_t shift = 1; shift < ranks && n > 0; ++shift) {
    const std::size_t peer = (me + shift) % ranks;
    receive(all.subspan(n * peer, n), static_cast<int>(peer));
    send(mine, static_cast<int>(peer));
  }
  if (n > 0) std::memcpy(all.data() + n * me, mine.data(), n);
  wait();
}

}  // namespace lpsgd
