// The emulated link: its token bucket against the definition, its times against the formula, its bytes
// against the transport's.
#include "comm/link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "core/clock.h"
#include "core/error.h"
#include "tests/comm/exchange_cases.h"
#include "tests/comm/transport_cases.h"

namespace lpsgd {
namespace {

LinkSpec link_of(const std::string& text) {
  LinkSpec link;
  config::read(config::parse_text(text, "a.yaml"), "link", link);
  return link;
}

std::string error_of(const std::string& text) {
  try {
    link_of(text);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "no error";
}

TEST(Link, IsReadAndWritten) {
  const LinkSpec link = link_of("{bandwidth: 2.5Gbit, latency: 50us, burst: 64kB}");
  EXPECT_EQ(link.bandwidth, 2.5e9);
  EXPECT_DOUBLE_EQ(link.latency, 50e-6);
  EXPECT_EQ(link.burst_bytes(), 64000);
  EXPECT_EQ(config::write(link).find("bandwidth")->scalar, "2.5Gbit");
  EXPECT_EQ(config::write(link).find("latency")->scalar, "50us");
  EXPECT_EQ(config::write(link).find("burst")->scalar, "64kB");
  EXPECT_EQ(to_text(link), "2.5Gbit, 50us");
  EXPECT_FALSE(link_of("{}").emulated());
  EXPECT_EQ(link_of("{bandwidth: 100 Mbit}").burst_bytes(), 65536);
  EXPECT_EQ(link_of("{bandwidth: 1Gbit}").burst_bytes(), 262500);
  EXPECT_EQ(error_of("{bandwidth: fast}"),
            "a.yaml:1:13: link.bandwidth: expected a number and a unit, such as 1Gbit; units: Gbit, Mbit, "
            "kbit, bit");
  EXPECT_EQ(error_of("{bandwidth: -1Gbit}").substr(0, 27), "a.yaml:1:13: link.bandwidth");
  EXPECT_EQ(error_of("{latency: 5}"),
            "a.yaml:1:11: link.latency: expected a number and a unit, such as 50us; units: s, ms, us");
  EXPECT_EQ(error_of("{bandwith: 1Gbit}"),
            "a.yaml:1:2: link.bandwith: unknown key, did you mean 'bandwidth'?; allowed here: bandwidth, "
            "latency, burst");
}

/// Byte by byte: a byte leaves once the bucket holds a token for it.
double slow_bucket(double rate, double burst, const std::vector<std::pair<double, int>>& messages) {
  double tokens = burst, at = 0;
  for (const auto& [offered, bytes] : messages) {
    const double start = std::max(at, offered);
    tokens = std::min(burst, tokens + (start - at) * rate);
    at = start;
    for (int i = 0; i < bytes; ++i) {
      if (tokens < 1) {
        at += (1 - tokens) / rate;
        tokens = 1;
      }
      tokens -= 1;
    }
  }
  return at;
}

TEST(Link, BucketIsATokenBucket) {
  const std::vector<std::pair<double, int>> all{{0, 500},  {0, 700}, {0.1, 900}, {3, 100},
                                                {3, 2500}, {3.2, 1}, {90, 999}};
  for (std::size_t n = 1; n <= all.size(); ++n) {
    TokenBucket bucket(1000, 1000);
    const std::vector<std::pair<double, int>> messages(all.begin(),
                                                       all.begin() + static_cast<std::ptrdiff_t>(n));
    double passed = 0;
    for (const auto& [offered, bytes] : messages) passed = bucket.pass(bytes, offered);
    EXPECT_NEAR(passed, slow_bucket(1000, 1000, messages), 1e-6) << n << " messages";
  }
  TokenBucket free(0, 0);
  EXPECT_EQ(free.pass(1e12, 5), 5);
}

class LinkedRanks : public testing::TestWithParam<int> {
 protected:
  void run(void (*body)(Transport&)) {
    run_thread_ranks(GetParam(), [&](Transport& inner) {
      const auto linked = make_linked_transport(inner, {.bandwidth = 4e9, .latency = 20e-6});
      body(*linked);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, LinkedRanks, testing::Values(1, 2, 3, 5));

TEST_P(LinkedRanks, IsATransport) {
  run(transport_cases::messages_match_by_tag_in_order);
  run(transport_cases::messages_of_many_sizes);
  run(transport_cases::many_messages_reuse_requests);
  run(transport_cases::allreduce_sums);
  run(transport_cases::collectives);
  run(transport_cases::bytes_are_counted);
}

TEST_P(LinkedRanks, ExchangesTheSameBytes) {
  const ExchangeSetup setup = make_setup("mixed");
  const auto options = exchange_cases::all_options(setup)[1];
  run_thread_ranks(GetParam(), [&](Transport& inner) {
    const auto linked = make_linked_transport(inner, {.bandwidth = 1e9, .latency = 50e-6});
    const auto over_link = exchange_cases::run(*linked, setup, options, 2);
    const auto direct = exchange_cases::run(inner, setup, options, 2);
    for (std::size_t step = 0; step < direct.size(); ++step)
      EXPECT_EQ(exchange_cases::tensor_values(setup, over_link[step]),
                exchange_cases::tensor_values(setup, direct[step]));
  });
}

// No message may arrive earlier than the link allows; how much later depends on the machine.
TEST(Link, CarriesNoFasterThanItsBandwidthAndLatency) {
  const LinkSpec link{.bandwidth = 1e9, .latency = 3e-3, .burst = 1e5};
  const double rate = link.bandwidth / 8, serial = 2e6 * link_overhead / rate, burst = 1e5 / rate;
  std::atomic<double> sent[2] = {0, 0};  // when each sender began
  run_thread_ranks(3, [&](Transport& inner) {
    const auto t = make_linked_transport(inner, link);
    std::vector<std::byte> bytes(2'000'000), other(bytes.size());
    std::vector<Transport::Request> requests;
    const auto send = [&](std::size_t n, int to) {
      const double start = now_seconds();
      sent[t->rank()] = start;
      requests = {t->isend(std::span(bytes).first(n), to, 1)};
      t->wait(requests);
      return now_seconds() - start;
    };
    if (t->rank() == 2) {
      // Both arrive over one link: the second has to wait for the first.
      requests = {t->irecv(bytes, 0, 1), t->irecv(other, 1, 1)};
      t->wait(requests);
      const double seconds = now_seconds() - std::min(sent[0].load(), sent[1].load());
      EXPECT_GE(seconds, 2 * serial - 2 * burst + link.latency);
    } else {
      EXPECT_GE(send(bytes.size(), 2), serial - burst + link.latency);
    }
    inner.barrier();
    if (t->rank() == 0) send(1, 1);
    if (t->rank() == 1) {
      requests = {t->irecv(std::span(bytes).first(1), 0, 1)};
      t->wait(requests);
      EXPECT_GE(now_seconds() - sent[0].load(), link.latency);
    }
    inner.barrier();
    std::vector<float> values(250'000, 1.0f);
    const double start = now_seconds();
    requests = {t->iallreduce(values)};
    t->wait(requests);
    EXPECT_GE(now_seconds() - start, 1e6 * 4 / 3 * link_overhead / rate - burst + 4 * link.latency);
    EXPECT_EQ(values[7], 3.0f);
  });
}

}  // namespace
}  // namespace lpsgd
