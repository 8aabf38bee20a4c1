// Messages and bytes of a step against the formulas of docs/exchange.md, for 2 to 16 ranks over threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/comm/exchange_cases.h"

namespace lpsgd {
namespace {

/// Test codecs with a formula for their sizes: buckets, and the bytes of a bucket of m values.
struct SizedCodec {
  const char* name;
  std::int64_t bucket;
  std::int64_t (*bytes)(std::int64_t m);
};

const SizedCodec sized[] = {
    {"none", 64, [](std::int64_t m) { return 4 * m; }},
    {"onebit64", 64, [](std::int64_t m) { return 8 + 4 * ((m + 31) / 32); }},
    {"qsgd4", 512, [](std::int64_t m) { return 4 + 4 * ((4 * m + 31) / 32); }},
};

struct Cost {
  std::int64_t messages = 0, bytes = 0;
};

/// Over all ranks: 2(K-1) messages and bytes per encoded copy. A part is one owner's share of one unit.
Cost formula(const ExchangeSetup& setup, const SizedCodec& codec, std::int64_t ranks,
             const ExchangeOptions& options) {
  std::int64_t parts = 0, copy = 0, packed = 0;
  std::vector<bool> owns(static_cast<std::size_t>(ranks));  // something of the open pack
  const auto close = [&] {
    parts += std::count(owns.begin(), owns.end(), true);
    owns.assign(owns.size(), false);
    packed = 0;
  };
  for (const std::size_t t : setup.order) {
    const std::int64_t n = setup.tensors[t].elements, b = codec.bucket, buckets = (n + b - 1) / b;
    copy += (buckets - 1) * codec.bytes(b) + codec.bytes(n - (buckets - 1) * b);
    std::vector<std::int64_t> stripes;
    for (std::int64_t r = 0; r < ranks; ++r)
      stripes.push_back((r + 1) * buckets / ranks - r * buckets / ranks);
    if (4 * n < options.pack_bytes) {
      for (std::size_t r = 0; r < stripes.size(); ++r)
        if (stripes[r] > 0) owns[(r + t) % stripes.size()] = true;
      packed += 4 * n;
      if (packed >= options.pack_bytes) close();
      continue;
    }
    const std::int64_t per_chunk = std::max<std::int64_t>(1, options.chunk_bytes / (4 * b));
    const std::int64_t largest = *std::max_element(stripes.begin(), stripes.end());
    for (const std::int64_t stripe : stripes)
      parts += std::min(stripe, (largest + per_chunk - 1) / per_chunk);
  }
  close();
  return {2 * (ranks - 1) * parts, 2 * (ranks - 1) * copy};
}

class ExchangeCost : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ExchangeCost, testing::Range(2, 17));

TEST_P(ExchangeCost, MessagesAndBytesAreTheFormulas) {
  for (const SizedCodec& codec : sized) {
    const ExchangeSetup setup = make_setup(codec.name);
    for (const std::size_t way : {1u, 3u}) {
      const ExchangeOptions options = exchange_cases::all_options(setup)[way];
      std::vector<double> messages, bytes;
      run_thread_ranks(GetParam(), [&](Transport& transport) {
        exchange_cases::run(transport, setup, options, 1);
        const auto all_messages = transport.all_gather(static_cast<double>(transport.messages_sent()));
        const auto all_bytes = transport.all_gather(static_cast<double>(transport.bytes_sent()));
        if (transport.rank() != 0) return;
        messages = all_messages;
        bytes = all_bytes;
      });
      const Cost expected = formula(setup, codec, GetParam(), options);
      EXPECT_EQ(std::accumulate(messages.begin(), messages.end(), 0.0), expected.messages) << codec.name;
      EXPECT_EQ(std::accumulate(bytes.begin(), bytes.end(), 0.0), expected.bytes) << codec.name;
    }
  }
}

}  // namespace
}  // namespace lpsgd
