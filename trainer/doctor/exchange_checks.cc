// What the ranks' links carry: messages between rank 0 and other ranks, and sums over all ranks.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <random>
#include <set>
#include <span>

#include "comm/agree.h"
#include "comm/backoff.h"
#include "comm/nccl_transport.h"
#include "core/buffer.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"
#include "trainer/bench/samples.h"
#include "trainer/doctor/checks.h"
#include "trainer/environment.h"
#include "trainer/run_config.h"

namespace lpsgd::doctor {

namespace {

using nlohmann::ordered_json;
using Words = std::vector<std::uint32_t>;

constexpr std::size_t large_words = std::size_t{4} << 20;  // 16 MiB
constexpr double large_bytes = sizeof(std::uint32_t) * large_words;
constexpr std::size_t small_rounds = 200, large_rounds = 7;
constexpr double part_seconds = 0.5;  // for each peer and size of message, but for the first rounds
constexpr int most_peers = 16;

/// The peers of rank 0 that are measured, evenly spread over all.
std::vector<int> peers_of(int size) {
  const int others = size - 1, n = std::min(others, most_peers);
  std::vector<int> peers;
  for (int i = 1; i <= n; ++i) peers.push_back(static_cast<int>(static_cast<std::int64_t>(i) * others / n));
  return peers;
}

void wait_within_limit(Transport& ranks, const std::function<bool()>& is_done, const std::string& what) {
  Patience patience(ranks.collectives().limit());
  Backoff backoff;
  while (!is_done()) {
    if (patience.due())
      patience.report(ranks, fmt::format("{} has waited {:.0f} s", what, patience.waited()));
    backoff.pause();
  }
}

/// Messages between rank 0 and one other, there and back. Rank 0 says before each round whether there is one.
class Ping {
 public:
  Ping(Transport& ranks, int peer)
      : ranks_(ranks), other_(ranks.rank() == 0 ? peer : 0), is_first_(ranks.rank() == 0) {}

  /// Seconds of one way of a message of four bytes: the median, on rank 0.
  double small() {
    std::vector<double> seconds;
    Words word(1);
    const double begin = now_seconds();
    for (std::size_t i = 0; next(i < 20 || (i < small_rounds && now_seconds() < begin + part_seconds)); ++i) {
      const double t = now_seconds();
      is_first_ ? send(word) : receive(word);
      is_first_ ? receive(word) : send(word);
      if (i >= 10) seconds.push_back((now_seconds() - t) / 2);  // the first ones make connections
    }
    return median(seconds);
  }

  /// The same of 16 MiB. `wrong`: words that did not come back as they were sent.
  double large(std::size_t& wrong) {
    std::vector<double> seconds;
    Words mine(is_first_ ? large_words : 0), back(large_words);
    std::mt19937 draw(static_cast<std::uint32_t>(other_));
    for (std::uint32_t& word : mine) word = draw();
    const double begin = now_seconds();
    for (std::size_t i = 0; next(i < 3 || (i < large_rounds && now_seconds() < begin + part_seconds)); ++i) {
      std::fill(back.begin(), back.end(), 0);
      // Receives are there before the messages, as in a step of training.
      const Transport::Request arrives = ranks_.irecv(std::as_writable_bytes(std::span(back)), other_, 0);
      Words ready(1);
      is_first_ ? receive(ready) : send(ready);
      const double t = now_seconds();
      if (is_first_) send(mine);
      wait(arrives);
      if (!is_first_) send(back);
      if (i > 0) seconds.push_back((now_seconds() - t) / 2);
      for (std::size_t w = 0; w < mine.size(); ++w) wrong += mine[w] != back[w];
    }
    return median(seconds);
  }

 private:
  bool next(bool more) {
    Words go{more ? 1U : 0U};
    is_first_ ? send(go) : receive(go);
    return go[0] != 0;
  }
  // Tag 1 for single words, tag 0 for large messages.
  void send(const Words& words) {
    wait(ranks_.isend(std::as_bytes(std::span(words)), other_, words.size() == 1 ? 1 : 0));
  }
  void receive(Words& word) { wait(ranks_.irecv(std::as_writable_bytes(std::span(word)), other_, 1)); }
  void wait(Transport::Request request) {
    wait_within_limit(
        ranks_, [&] { return ranks_.test(request); }, fmt::format("a message from or to rank {}", other_));
  }

  Transport& ranks_;
  const int other_;
  const bool is_first_;
};

struct PeerTimes {
  int rank;
  double latency, seconds;
};

/// "340 ns (rank 1)", or "340 ns (rank 1) to 20 us (rank 5 on node2)".
template <class Number>
std::string range_of(const std::vector<PeerTimes>& peers, Number number, std::string (*text)(double),
                     const std::vector<std::string>& hosts) {
  const auto less = [&](const PeerTimes& a, const PeerTimes& b) { return number(a) < number(b); };
  const auto named = [&](const PeerTimes& peer) {
    const std::string& host = hosts[static_cast<std::size_t>(peer.rank)];
    return fmt::format("{} (rank {}{})", text(number(peer)), peer.rank,
                       host == hosts[0] ? "" : " on " + host);
  };
  const auto [least, most] = std::minmax_element(peers.begin(), peers.end(), less);
  return peers.size() == 1 ? text(number(*least)) : fmt::format("{} to {}", named(*least), named(*most));
}

Check messages_check(Transport& ranks) {
  const std::vector<std::string> hosts = ranks.all_gather_text(hostname());
  std::vector<PeerTimes> times;
  std::size_t wrong = 0;
  int wrong_rank = 0;
  for (const int peer : peers_of(ranks.size())) {
    if (ranks.rank() == 0 || ranks.rank() == peer) {
      Ping ping(ranks, peer);
      const double latency = ping.small();
      const std::size_t before = wrong;
      times.push_back({peer, latency, ping.large(wrong)});
      if (wrong > before) wrong_rank = peer;
    }
    ranks.barrier();  // one pair at a time
  }
  if (ranks.rank() != 0) return {};
  Check check{"ranks.exchange"};
  const auto latency = [](const PeerTimes& peer) { return peer.latency; };
  const auto rate = [](const PeerTimes& peer) { return large_bytes / peer.seconds; };
  check.found =
      fmt::format("rank 0 with {}: 4 bytes in {}, 16 MiB at {}",
                  times.size() == 1 ? "rank 1" : count_text(static_cast<int>(times.size()), "other"),
                  range_of(times, latency, seconds_text, hosts), range_of(times, rate, rate_text, hosts));
  ordered_json& peers = check.values["peers"] = ordered_json::array();
  double slowest = 0, longest = 0;
  for (const PeerTimes& peer : times) {
    peers.push_back({{"rank", peer.rank},
                     {"host", hosts[static_cast<std::size_t>(peer.rank)]},
                     {"latency_s", peer.latency},
                     {"bytes_per_s", rate(peer)}});
    slowest = std::max(slowest, peer.seconds);
    longest = std::max(longest, peer.latency);
  }
  check.values["latency_s"] = longest;
  check.values["bytes_per_s"] = large_bytes / slowest;
  check.values["bytes_equal"] = wrong == 0;
  if (wrong > 0) {
    check.status = Status::error;
    check.found += fmt::format("; {} bytes of rank {} did not come back as they were sent",
                               wrong * sizeof(std::uint32_t), wrong_rank);
    check.advice = "the network or a memory damages what it carries: test both machines' memory and links";
  } else {
    check.found += "; all bytes came back equal";
  }
  return check;
}

/// Runs `body`, which uses NCCL, on every rank. If it fails on one of them, all throw a SharedError: they can
/// still talk over `ranks`. After a wait that has reached the ranks' limit they cannot.
void try_nccl(Transport& ranks, const std::function<void()>& body) {
  collective_try(ranks, [&] {
    const double begin = now_seconds();
    try {
      body();
    } catch (const CommError& e) {
      log::warn("{}", e.what());  // at once, because the other ranks may not notice
      if (now_seconds() - begin >= ranks.collectives().limit().seconds) throw;
      throw Error(e.what());
    }
  });
}

/// Adds `values` over all ranks, and returns how long it took.
using Sum = std::function<double(std::span<float> values)>;

Sum sum_over(Transport& ranks) {
  return [&ranks](std::span<float> values) {
    const double begin = now_seconds();
    const Transport::Request request = ranks.iallreduce(values);
    wait_within_limit(
        ranks, [&] { return ranks.test(request); }, "a sum over all ranks");
    return now_seconds() - begin;
  };
}

/// Throws a SharedError if NCCL fails on a rank. Its communicator is given up then, so that the others
/// notice.
Sum sum_over_nccl(Transport& ranks, Transport& nccl, Device device) {
  return [&ranks, &nccl, device](std::span<float> values) {
    constexpr double limit = 60;  // seconds, fewer than the ranks' own, which limits connecting
    double seconds = 0;
    try_nccl(ranks, [&] {
      try {
        const double begin = now_seconds();
        nccl.iallreduce(values);
        Event done(device);
        done.record(nccl.stream());
        for (Backoff backoff; !done.done(); backoff.pause()) {
          nccl.throw_if_failed();
          if (now_seconds() - begin > limit)
            throw CommError(fmt::format("NCCL: a sum over all ranks has waited {:.0f} s", limit));
        }
        nccl.throw_if_failed();
        seconds = now_seconds() - begin;
      } catch (...) {
        nccl.cancel();
        throw;
      }
    });
    return seconds;
  };
}

/// The sum of 16 MiB of float32 over all ranks, in nccl-tests' terms.
Check sum_check(Transport& ranks, const Sum& sum, Device device, const std::string& name) {
  const Stream stream(device);
  DeviceBuffer<float> values(device, large_words);
  Buffer<float> host(large_words);
  const auto k = static_cast<float>(ranks.size());
  std::vector<double> seconds;
  std::uint64_t wrong = 0;
  for (int i = 0; i < 5; ++i) {
    for (std::size_t j = 0; j < host.size(); ++j)
      host[j] = static_cast<float>(ranks.rank() + 1) + static_cast<float>(j % 1024);
    copy_values(values.view(), host.view(), stream);
    stream.synchronize();
    ranks.barrier();
    const std::vector<double> all = ranks.all_gather(sum(values.view()));
    if (i > 0) seconds.push_back(*std::max_element(all.begin(), all.end()));
    copy_values(host.view(), values.view(), stream);
    stream.synchronize();
    for (std::size_t j = 0; j < host.size();
         ++j)  // all of them are whole numbers, so any order gives the same
      wrong += host[j] != k * (k + 1) / 2 + k * static_cast<float>(j % 1024);
  }
  for (const std::uint64_t one : ranks.all_gather(wrong)) wrong = std::max(wrong, one);
  const double time = median(seconds), bus = 2.0 * (ranks.size() - 1) / ranks.size() * large_bytes / time;
  Check check{name, Status::ok,
              fmt::format("all-reduce of 16 MiB over {}: {}, bus {}", count_text(ranks.size(), "rank"),
                          seconds_text(time), rate_text(bus))};
  check.values = {{"seconds", time}, {"bus_bytes_per_s", bus}, {"sum_equal", wrong == 0}};
  if (wrong > 0) {
    check.status = Status::error;
    check.found += "; sums are wrong";
    check.advice = "the network, a memory or a GPU damages what it carries: run nccl-tests or a memory test";
  }
  return check;
}

/// Over NCCL, where each rank has a GPU of its own. Collective.
Check nccl_check(Transport& ranks) {
  Check check{"ranks.nccl", Status::absent};
  const Device device = device_of({}, ranks.local_rank());
  std::set<std::string> gpus;
  int without = 0;
  // NCCL tells hosts apart by it.
  const char* host_id = std::getenv("NCCL_HOSTID");
  const std::string host = host_id != nullptr ? host_id : hostname();
  for (const std::string& one :
       ranks.all_gather_text(device.is_cuda() ? host + " " + cuda_device_info(device.index).bus : ""))
    one.empty() ? ++without : static_cast<int>(gpus.insert(one).second);
  if (without > 0)
    check.found = "not every rank has a GPU; exchange.transport: nccl needs one each";
  else if (static_cast<int>(gpus.size()) < ranks.size())
    check.found = "ranks share a GPU; exchange.transport: nccl needs one each";
  else
    check.found = nccl_missing();
  if (!check.found.empty()) return check;
  const char* failing = "NCCL does not connect the ranks";
  try {
    std::unique_ptr<Transport> nccl;
    try_nccl(ranks, [&] { nccl = make_nccl_transport(ranks, device); });
    failing = "NCCL connects the ranks, but cannot add their values";
    return sum_check(ranks, sum_over_nccl(ranks, *nccl, device), device, check.name);
  } catch (const SharedError& e) {
    check.status = Status::error;
    std::string reasons = e.what();  // a line for each rank
    for (std::size_t at = 0; (at = reasons.find('\n', at)) != std::string::npos;)
      reasons.replace(at, 1, "; ");
    check.found = fmt::format("{}: {}", failing, reasons);
    check.advice = "run with NCCL_DEBUG=INFO for its reasons; exchange.transport: mpi works without it";
    return check;
  }
}

}  // namespace

Checks exchange_checks(Transport& ranks) {
  if (ranks.size() == 1) return {{"ranks.exchange", Status::absent, "one rank has nobody to exchange with"}};
  Checks checks{messages_check(ranks), sum_check(ranks, sum_over(ranks), Device::cpu(), "ranks.allreduce")};
  checks.push_back(nccl_check(ranks));
  return checks;
}

}  // namespace lpsgd::doctor
