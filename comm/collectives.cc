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
  constexpr const char* kinds[] = {"barrier", "broadcast", "all_gather", "average"};
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

std::string difference(std::span<const CollectiveCall> calls, int first_rank) {
  const auto known = [](const CollectiveCall& call) { return call.number > 0; };
  const auto first = std::find_if(calls.begin(), calls.end(), known);
  const auto other =
      std::find_if(first, calls.end(), [&](const auto& call) { return known(call) && call != *first; });
  if (other == calls.end()) return "";
  const auto ranks_at = [&](const CollectiveCall& place) {
    std::vector<int> ranks;
    for (std::size_t r = 0; r < calls.size(); ++r)
      if (calls[r] == place) ranks.push_back(first_rank + static_cast<int>(r));
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
      throw impossible(static_cast<std::size_t>(transport_.rank_in_run(damaged)),
                       "no record of a collective");
    }
    if (differs) {
      transport_.cancel();
      throw CommError(difference(calls_, transport_.rank_in_run(0)));
    }
    if (arrived > 0) {
      backoff.reset();
      patience.reset();
      continue;
    }
    backoff.pause();
    if (!patience.due()) continue;
    std::vector<int> missing;
    missing.reserve(in_flight_.size());
    for (const Message& m : in_flight_) missing.push_back(transport_.rank_in_run(m.peer));
    std::sort(missing.begin(), missing.end());
    missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
    patience.report(transport_,
                    fmt::format("{} has waited {:.0f} s for {}{}{}", text(mine), patience.waited(),
                                ranks_text(missing), reason.empty() ? "" : "; ", reason));
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

/// Each rank takes the mean of its stripe, in rank order, and sends it to the others.
std::uint64_t Collectives::average(std::span<float> values, Place at) {
  meet(CollectiveCall::Kind::average, 0, values.size_bytes(), at);
  const std::size_t part = (std::size_t{1} << 18) * static_cast<std::size_t>(transport_.size());
  std::uint64_t sent = 0;
  std::vector<float> theirs;
  for (std::size_t begin = 0; begin < values.size(); begin += part)
    sent += average_part(values.subspan(begin, std::min(part, values.size() - begin)), theirs);
  return sent;
}

std::uint64_t Collectives::average_part(std::span<float> values, std::vector<float>& theirs) {
  const auto ranks = static_cast<std::size_t>(transport_.size());
  const auto me = static_cast<std::size_t>(transport_.rank());
  const auto stripe = [&](std::size_t r) {
    const std::size_t first = values.size() * r / ranks;
    return values.subspan(first, values.size() * (r + 1) / ranks - first);
  };
  const std::span<float> own = stripe(me);
  theirs.resize(own.size() * ranks);
  const auto contribution = [&](std::size_t r) {
    return r == me ? own : std::span(theirs).subspan(own.size() * r, own.size());
  };
  std::uint64_t sent = 0;
  const auto exchange = [&](const auto& to_send, const auto& to_receive) {
    for (std::size_t shift = 1; shift < ranks; ++shift) {
      const std::size_t peer = (me + shift) % ranks;
      const std::span<float> in = to_receive(peer), out = to_send(peer);
      if (!in.empty()) receive(std::as_writable_bytes(in), static_cast<int>(peer));
      if (!out.empty()) send(std::as_bytes(out), static_cast<int>(peer));
      sent += out.size_bytes();
    }
    wait();
  };
  exchange(stripe, contribution);
  const float scale = 1.0f / static_cast<float>(ranks);
  for (std::size_t i = 0; i < own.size(); ++i) {
    float sum = contribution(0)[i];
    for (std::size_t r = 1; r < ranks; ++r) sum += contribution(r)[i];
    own[i] = sum * scale;
  }
  exchange([&](std::size_t) { return own; }, stripe);
  return sent;
}

}  // namespace lpsgd
