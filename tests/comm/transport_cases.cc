#include "tests/comm/transport_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "core/error.h"

namespace lpsgd::transport_cases {
namespace {

std::vector<std::byte> pattern(std::size_t n, int from, int salt) {
  std::vector<std::byte> bytes(n);
  for (std::size_t i = 0; i < n; ++i)
    bytes[i] = static_cast<std::byte>(
        (i * 131 + static_cast<std::size_t>(from) * 17 + static_cast<std::size_t>(salt) * 29 + i / 251) &
        255);
  return bytes;
}

}  // namespace

void messages_match_by_tag_in_order(Transport& t) {
  const int next = (t.rank() + 1) % t.size(), previous = (t.rank() + t.size() - 1) % t.size();
  const std::array<int, 4> values{10, 20, 30, 40}, tags{5, 6, 5, 6};
  std::array<int, 4> mine{}, received{};
  for (std::size_t i = 0; i < 4; ++i) mine[i] = values[i] + 1000 * t.rank();
  std::vector<Transport::Request> requests;
  const auto receive = [&](std::size_t slot, int tag) {
    requests.push_back(t.irecv(std::as_writable_bytes(std::span(&received[slot], 1)), previous, tag));
  };
  // Half of the receives are posted before their messages, half after; tag 6 is received first.
  receive(1, 6);
  receive(0, 5);
  for (std::size_t i = 0; i < 4; ++i)
    requests.push_back(t.isend(std::as_bytes(std::span(&mine[i], 1)), next, tags[i]));
  receive(3, 6);
  receive(2, 5);
  std::reverse(requests.begin(), requests.end());
  t.wait(requests);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(received[i], values[i] + 1000 * previous);
}

void messages_of_many_sizes(Transport& t) {
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{3}, std::size_t{4096},
                              std::size_t{65537}, std::size_t{300'001}}) {
    std::vector<std::vector<std::byte>> received, sent;
    std::vector<Transport::Request> requests;
    for (int peer = 0; peer < t.size(); ++peer) {
      received.emplace_back(n);
      sent.push_back(pattern(n, t.rank(), peer));
    }
    for (int shift = 1; shift < t.size(); ++shift) {
      const int to = (t.rank() + shift) % t.size(), from = (t.rank() + t.size() - shift) % t.size();
      requests.push_back(t.isend(sent[static_cast<std::size_t>(to)], to, 7));
      requests.push_back(t.irecv(received[static_cast<std::size_t>(from)], from, 7));
    }
    t.wait(requests);
    for (int from = 0; from < t.size(); ++from) {
      if (from == t.rank()) continue;
      EXPECT_TRUE(received[static_cast<std::size_t>(from)] == pattern(n, from, t.rank()))
          << n << " bytes from rank " << from;
    }
  }
}

void many_messages_reuse_requests(Transport& t) {
  const int next = (t.rank() + 1) % t.size(), previous = (t.rank() + t.size() - 1) % t.size();
  Transport::Request highest = 0;
  for (int i = 0; i < 300; ++i) {
    const int mine = i * 10 + t.rank();
    int theirs = -1;
    const std::array requests{t.isend(std::as_bytes(std::span(&mine, 1)), next, i % 3),
                              t.irecv(std::as_writable_bytes(std::span(&theirs, 1)), previous, i % 3)};
    t.wait(requests);
    EXPECT_EQ(theirs, i * 10 + previous);
    highest = std::max({highest, requests[0], requests[1]});
  }
  EXPECT_LT(highest, 64u);
}

void allreduce_sums(Transport& t) {
  const int k = t.size();
  for (const std::size_t n : {std::size_t{1}, std::size_t{5}, std::size_t{4099}, std::size_t{100'003}}) {
    // Whole numbers: their sums are exact in any order. Two in flight, waited for in either order.
    std::vector<float> a(n), b(n);
    for (std::size_t i = 0; i < n; ++i) {
      a[i] = static_cast<float>(i % 1000 + static_cast<std::size_t>(t.rank()));
      b[i] = static_cast<float>(i % 77) * static_cast<float>(t.rank());
    }
    std::array requests{t.iallreduce(a), t.iallreduce(b)};
    if (t.rank() % 2 == 1) std::swap(requests[0], requests[1]);
    t.wait(requests);
    const auto ranks = static_cast<std::size_t>(k), sum = ranks * (ranks - 1) / 2;
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_EQ(a[i], static_cast<float>(i % 1000 * ranks + sum)) << i;
      ASSERT_EQ(b[i], static_cast<float>(i % 77 * sum)) << i;
    }
  }
}

void collectives(Transport& t) {
  for (int round = 0; round < 3; ++round) {
    t.barrier();
    for (int root = 0; root < t.size(); ++root) {
      auto bytes = t.rank() == root ? pattern(1000, root, round) : std::vector<std::byte>(1000);
      t.broadcast(bytes, root);
      EXPECT_TRUE(bytes == pattern(1000, root, round));
    }
    const auto values = t.all_gather(t.rank() + 0.5);
    ASSERT_EQ(values.size(), static_cast<std::size_t>(t.size()));
    for (int r = 0; r < t.size(); ++r) EXPECT_EQ(values[static_cast<std::size_t>(r)], r + 0.5);
    EXPECT_TRUE(t.all_equal(42));
    EXPECT_EQ(t.all_equal(t.rank() == t.size() - 1 ? 43 : 42), t.size() == 1);
    const auto texts = t.all_gather_text(std::string(static_cast<std::size_t>(t.rank()), 'x') + "end");
    for (int r = 0; r < t.size(); ++r)
      EXPECT_EQ(texts[static_cast<std::size_t>(r)], std::string(static_cast<std::size_t>(r), 'x') + "end");
    EXPECT_EQ(t.all_gather_text("").size(), static_cast<std::size_t>(t.size()));
  }
  for (const std::size_t n : {0u, 1u, 2u, 7u, 1000u, 1'500'003u}) {  // the last one in several parts
    const auto value = [](std::size_t i, int rank) {
      return 1.0f / static_cast<float>(i % 1009 + 3 * static_cast<std::size_t>(rank) + 1);
    };
    std::vector<float> values(n), means(n);
    for (std::size_t i = 0; i < n; ++i) {
      values[i] = value(i, t.rank());
      means[i] = value(i, 0);
      for (int r = 1; r < t.size(); ++r) means[i] += value(i, r);
      means[i] *= 1.0f / static_cast<float>(t.size());
    }
    std::uint64_t sent = 0;
    for (const std::uint64_t one : t.all_gather(t.average(values))) sent += one;
    EXPECT_TRUE(values == means) << n << " values";
    EXPECT_EQ(sent, 2 * static_cast<std::uint64_t>(t.size() - 1) * 4 * n);
  }
  std::vector<std::byte> wrong(1);
  EXPECT_THROW(t.all_gather(pattern(3, 0, 0), wrong), Error);
}

void bytes_are_counted(Transport& t) {
  const std::uint64_t before = t.bytes_sent();
  const auto bytes = pattern(1001, t.rank(), 0);
  std::vector<std::byte> received(1001);
  const std::array requests{t.isend(bytes, (t.rank() + 1) % t.size(), 1),
                            t.irecv(received, (t.rank() + t.size() - 1) % t.size(), 1)};
  t.wait(requests);
  EXPECT_EQ(t.bytes_sent() - before, 1001u);
  std::vector<float> values(101, 1.0f);
  const std::array reduction{t.iallreduce(values)};
  t.wait(reduction);
  t.barrier();
  double all = 0;
  for (const double each : t.all_gather(static_cast<double>(t.bytes_sent() - before))) all += each;
  EXPECT_EQ(all, 1001.0 * t.size() + 2.0 * (t.size() - 1) * 404);
}

}  // namespace lpsgd::transport_cases
