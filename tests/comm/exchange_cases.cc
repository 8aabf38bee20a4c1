#include "tests/comm/exchange_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "comm/exchange_tensor.h"
#include "core/checksum.h"

namespace lpsgd::exchange_cases {
namespace {

bool same_bytes(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class HostArena final : public Arena {
 public:
  explicit HostArena(std::size_t size) : values_(size) {}
  std::span<float> values() override { return values_; }
  ExchangeOptions adapt(ExchangeOptions options) override { return options; }
  void write(const float* values, std::int64_t first, std::int64_t n) override {
    std::copy(values, values + n, values_.begin() + first);
  }
  std::vector<float> read() override { return values_; }

 private:
  std::vector<float> values_;
};

}  // namespace

std::unique_ptr<Arena> host_arena(std::size_t size) {
  return std::make_unique<HostArena>(size);
}

std::vector<ExchangeOptions> all_options(const ExchangeSetup& setup, const Way& way) {
  const auto make = [&](std::int64_t chunk, std::int64_t pack, int in_flight, bool overlap) {
    ExchangeOptions options;
    options.collective = way.collective;
    options.ranks_per_block = way.ranks_per_block;
    options.seed = setup.seed;
    options.chunk_bytes = chunk;
    options.pack_bytes = pack;
    options.units_in_flight = in_flight;
    options.overlap = overlap;
    return options;
  };
  return {make(1 << 20, 1 << 18, 4, true), make(4096, 512, 1, true), make(1500, 0, 3, true),
          make(20000, 4000, 9, false)};
}

std::vector<float> exchange_step(Exchange& exchange, const ExchangeSetup& setup, std::uint32_t step,
                                 Arena& arena, const std::vector<float>& own) {
  // Until a gradient is final its memory holds other values.
  std::vector<float> unfinished = own;
  for (const TensorInfo& tensor : setup.tensors)
    std::fill_n(unfinished.begin() + tensor.offset, tensor.elements, 1234.5f);
  exchange.begin(step);
  arena.write(unfinished.data(), 0, static_cast<std::int64_t>(unfinished.size()));
  for (const std::size_t t : setup.order) {
    const TensorInfo& tensor = setup.tensors[t];
    arena.write(own.data() + tensor.offset, tensor.offset, tensor.elements);
    exchange.submit(t);
  }
  exchange.finish();
  return arena.read();
}

Means run(Transport& transport, const ExchangeSetup& setup, const ExchangeOptions& options,
          std::uint32_t steps, const MakeArena& make_arena) {
  const auto arena = make_arena(setup.arena);
  Exchange exchange(transport, setup.tensors, setup.codecs, arena->values(), setup.order,
                    arena->adapt(options));
  // A milestone opens each unit, in the order of tensors, the last tensor the last.
  auto at = setup.order.begin();
  const std::vector<std::size_t> milestones = exchange.milestones();
  for (const std::size_t t : milestones) {
    at = std::find(at, setup.order.end(), t);
    EXPECT_NE(at, setup.order.end()) << "tensor " << t;
    if (at != setup.order.end()) ++at;
  }
  EXPECT_EQ(at, setup.order.end());
  EXPECT_FALSE(milestones.empty());
  Means means;
  for (std::uint32_t step = 0; step < steps; ++step)
    means.push_back(exchange_step(exchange, setup, step, *arena, setup.gradients(transport.rank(), step)));
  return means;
}

std::vector<float> tensor_values(const ExchangeSetup& setup, const std::vector<float>& arena) {
  std::vector<float> values;
  for (const TensorInfo& tensor : setup.tensors)
    values.insert(values.end(), arena.begin() + tensor.offset,
                  arena.begin() + tensor.offset + tensor.elements);
  return values;
}

void equals_reference(Transport& transport, const ExchangeSetup& setup, const Means& expected,
                      const ExchangeOptions& options, const MakeArena& make_arena) {
  const Means means = run(transport, setup, options, static_cast<std::uint32_t>(expected.size()), make_arena);
  for (std::size_t step = 0; step < expected.size(); ++step) {
    const auto own = setup.gradients(transport.rank(), static_cast<std::uint32_t>(step));
    for (std::size_t t = 0; t < setup.tensors.size(); ++t) {
      const TensorInfo& tensor = setup.tensors[t];
      const auto offset = static_cast<std::size_t>(tensor.offset);
      const auto end = offset + static_cast<std::size_t>(tensor.elements);
      EXPECT_EQ(std::memcmp(&means[step][offset], &expected[step][offset], (end - offset) * sizeof(float)), 0)
          << tensor.name << " with " << to_text(setup.codecs[t]) << ", step " << step << ", rank "
          << transport.rank() << " of " << transport.size() << ", chunks of " << options.chunk_bytes;
      const std::size_t next =
          t + 1 < setup.tensors.size() ? static_cast<std::size_t>(setup.tensors[t + 1].offset) : setup.arena;
      for (std::size_t gap = end; gap < next; ++gap)
        ASSERT_EQ(means[step][gap], own[gap]) << "written past the end of " << tensor.name;
    }
  }
}

void equals_reference(Transport& transport, const ExchangeSetup& setup, const Means& expected,
                      const MakeArena& make_arena, const Way& way) {
  for (const ExchangeOptions& options : all_options(setup, way))
    equals_reference(transport, setup, expected, options, make_arena);
}

void replicas_stay_equal(Transport& transport, const std::string& codec, const MakeArena& make_arena,
                         const Way& way) {
  const ExchangeSetup setup = make_setup(codec);
  const Means means = run(transport, setup, all_options(setup, way)[1], 12, make_arena);
  for (std::size_t step = 0; step < means.size(); ++step) {
    const auto values = tensor_values(setup, means[step]);
    EXPECT_TRUE(transport.all_equal(checksum64(std::as_bytes(std::span(values))))) << "step " << step;
  }
}

void none_is_the_mean(Transport& transport, const Way& way, const MakeArena& make_arena) {
  const ExchangeSetup setup = make_setup("none");
  for (ExchangeOptions options : all_options(setup, way)) {
    const auto values = tensor_values(setup, run(transport, setup, options, 1, make_arena)[0]);
    std::vector<double> sum(values.size());
    for (int r = 0; r < transport.size(); ++r) {
      const auto own = tensor_values(setup, setup.gradients(r, 0));
      for (std::size_t i = 0; i < own.size(); ++i) sum[i] += static_cast<double>(own[i]);
      EXPECT_TRUE(transport.size() > 1 || same_bytes(own, values));
    }
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(static_cast<double>(values[i]), sum[i] / transport.size(), 4e-7) << i;
    EXPECT_TRUE(transport.all_equal(checksum64(std::as_bytes(std::span(values)))));
  }
}

void residuals_continue(Transport& transport, const std::string& codec, const MakeArena& make_arena,
                        const Way& way) {
  const ExchangeSetup setup = make_setup(codec);
  const auto options = all_options(setup, way);
  const Means straight = run(transport, setup, options[0], 4, make_arena);
  const auto arena = make_arena(setup.arena);
  ExchangeState saved;
  {
    Exchange first(transport, setup.tensors, setup.codecs, arena->values(), setup.order,
                   arena->adapt(options[0]));
    for (const std::uint32_t step : {0u, 1u})
      exchange_step(first, setup, step, *arena, setup.gradients(transport.rank(), step));
    saved = first.state();
  }
  Exchange second(transport, setup.tensors, setup.codecs, arena->values(), setup.order,
                  arena->adapt(options[2]));
  second.set_state(saved);
  for (const std::uint32_t step : {2u, 3u}) {
    const auto mean = exchange_step(second, setup, step, *arena, setup.gradients(transport.rank(), step));
    EXPECT_TRUE(same_bytes(tensor_values(setup, mean), tensor_values(setup, straight[step])))
        << "step " << step;
  }
}

void parts_are_the_whole(Transport& transport, const std::string& codec, const Way& way,
                         const MakeArena& make_arena) {
  const ExchangeSetup setup = make_setup(codec);
  const std::size_t count = setup.tensors.size();
  const std::vector<std::size_t> ends{1, count / 2, count};
  for (ExchangeOptions options : all_options(setup, way)) {
    const Means whole = run(transport, setup, options, 3, make_arena);
    const auto arena = make_arena(setup.arena);
    options.parts = ends;
    Exchange exchange(transport, setup.tensors, setup.codecs, arena->values(), setup.order,
                      arena->adapt(options));
    for (std::uint32_t step = 0; step < whole.size(); ++step) {
      const std::vector<float> own = setup.gradients(transport.rank(), step);
      arena->write(own.data(), 0, static_cast<std::int64_t>(own.size()));
      std::vector<float> expected = own;
      for (const std::size_t part : {2, 0, 1}) {
        const std::size_t first = part == 0 ? 0 : ends[part - 1];
        exchange.begin(step, part);
        for (const std::size_t t : setup.order)
          if (first <= t && t < ends[part]) exchange.submit(t);
        if (part != 0) exchange.release();
        exchange.finish();
        EXPECT_EQ(exchange.check_finite().tensor, -1);
        for (std::size_t t = first; t < ends[part]; ++t) {
          const TensorInfo& tensor = setup.tensors[t];
          std::copy_n(whole[step].begin() + tensor.offset, tensor.elements, expected.begin() + tensor.offset);
        }
        EXPECT_TRUE(same_bytes(tensor_values(setup, arena->read()), tensor_values(setup, expected)))
            << codec << ", step " << step << ", part " << part << ", chunks of " << options.chunk_bytes;
      }
    }
  }
}

void non_finite_is_named(Transport& transport, const std::string& codec, const Way& way,
                         const MakeArena& make_arena) {
  const ExchangeSetup setup = make_setup(codec);
  ExchangeOptions options = all_options(setup, way)[1];
  const auto arena = make_arena(setup.arena);
  Exchange exchange(transport, setup.tensors, setup.codecs, arena->values(), setup.order,
                    arena->adapt(options));
  exchange_step(exchange, setup, 0, *arena, setup.gradients(transport.rank(), 0));
  EXPECT_EQ(exchange.check_finite().tensor, -1);
  EXPECT_EQ(exchange.check_finite().rank, -1);

  auto own = setup.gradients(transport.rank(), 1);  // tensor 3 of the last two ranks, tensor 6 of rank 0
  const int last = transport.size() - 1;
  if (transport.rank() >= last - 1)
    own[static_cast<std::size_t>(setup.tensors[3].offset) + 777] = std::numeric_limits<float>::quiet_NaN();
  if (transport.rank() == 0)
    own[static_cast<std::size_t>(setup.tensors[6].offset)] = std::numeric_limits<float>::infinity();
  exchange_step(exchange, setup, 1, *arena, own);
  const auto check = [&](const NonFinite& found) {
    EXPECT_EQ(found.tensor, 3);
    EXPECT_EQ(found.rank, std::max(0, last - 1));
    EXPECT_EQ(found.step, 1u);
  };
  check(exchange.check_finite());
  check(exchange.check_finite());
  // On a device the previous step is checked without waiting; after the next step that is the one with the
  // NaN.
  ExchangeOptions here = arena->adapt(options);
  if (!here.device.is_cuda()) return;
  EXPECT_EQ(exchange.check_finite(true).step, 0u);
  EXPECT_EQ(exchange.check_finite(true).tensor, -1);
  exchange_step(exchange, setup, 2, *arena, setup.gradients(transport.rank(), 2));
  check(exchange.check_finite(true));
}

void bytes_are_those_announced(Transport& transport, const std::string& codec, const Way& way,
                               const MakeArena& make_arena) {
  const ExchangeSetup setup = make_setup(codec);
  double announced = 0;
  for (std::size_t t = 0; t < setup.tensors.size(); ++t)
    announced += static_cast<double>(wire_bytes(setup.tensors[t], setup.codecs[t], transport.size()));
  EXPECT_TRUE(codec != "none" || announced == 4.0 * static_cast<double>(setup.elements()));
  for (ExchangeOptions options : all_options(setup, way)) {
    const auto arena = make_arena(setup.arena);
    Exchange exchange(transport, setup.tensors, setup.codecs, arena->values(), setup.order,
                      arena->adapt(options));
    const std::uint64_t handed_over = transport.bytes_sent();
    for (std::uint32_t step = 0; step < 3; ++step)
      exchange_step(exchange, setup, step, *arena, setup.gradients(transport.rank(), 0));
    const std::uint64_t carried = transport.bytes_sent() - handed_over;
    const ExchangeStats stats = exchange.take_stats();
    EXPECT_TRUE(way.collective == Collective::simulated || stats.bytes_sent == carried);
    double all = 0;
    for (const double sent : transport.all_gather(static_cast<double>(stats.bytes_sent))) all += sent;
    double between = 0;
    for (const double sent : transport.all_gather(static_cast<double>(stats.bytes_between))) between += sent;
    const int ranks = transport.size(), blocks = ranks / way.ranks_per_block;
    const double within = 4.0 * static_cast<double>(setup.elements()) + announced;
    EXPECT_EQ(all, 3.0 * (2.0 * (blocks - 1) * announced + (ranks - blocks) * within));
    EXPECT_TRUE(!has_owners(way.collective) || between == 3.0 * 2.0 * (blocks - 1) * announced);
    EXPECT_GT(stats.encode, 0);
    EXPECT_GT(stats.decode, 0);
    EXPECT_GE(stats.transfer, 0);
    EXPECT_GT(stats.exposed, 0);
    EXPECT_GE(stats.exposed_codec, 0);
    EXPECT_LE(stats.exposed_codec, stats.exposed + 1e-9);
    EXPECT_LE(stats.exposed_codec, stats.encode + stats.decode + 1e-9);
    EXPECT_EQ(exchange.take_stats().bytes_sent, 0u);
  }
}

void simulated_decodes_its_own(Transport& transport, const std::string& codec, const MakeArena& make_arena) {
  const ExchangeSetup setup = make_setup(codec);
  for (ExchangeOptions options : all_options(setup)) {
    options.collective = Collective::simulated;
    const auto arena = run(transport, setup, options, 1, make_arena)[0];
    const auto own = setup.gradients(transport.rank(), 0);
    for (std::size_t t = 0; t < setup.tensors.size(); ++t) {
      if (setup.codecs[t].bucket == BucketSize::column) continue;  // the order differs from memory's
      const TensorInfo& tensor = setup.tensors[t];
      const auto c = make_codec(setup.codecs[t], tensor);
      std::vector<std::byte> bytes(c->encoded_bytes(tensor.elements));
      std::vector<float> residual(static_cast<std::size_t>(tensor.elements)), decoded(residual.size());
      CodingJob job = c->job(0, tensor.elements, t);
      job.values = own.data() + tensor.offset;
      job.residual = c->error_feedback() ? residual.data() : nullptr;
      job.bytes = bytes.data();
      job.out = decoded.data();
      c->encode(job, {setup.seed, 0, static_cast<std::uint32_t>(transport.rank()), 1});
      c->decode(job);
      EXPECT_EQ(std::memcmp(decoded.data(), arena.data() + tensor.offset, decoded.size() * sizeof(float)), 0)
          << tensor.name;
    }
  }
}

void errors_are_measured(Transport& transport, const std::string& codec, const MakeArena& make_arena,
                         const Way& way) {
  const ExchangeSetup setup = make_setup(codec);
  ExchangeOptions options = all_options(setup, way)[1];
  std::vector<CodingError> expected(setup.tensors.size());
  std::vector<std::vector<float>> residuals;
  for (const TensorInfo& tensor : setup.tensors)
    residuals.emplace_back(static_cast<std::size_t>(tensor.elements));
  options.measure_error = true;
  const auto arena = make_arena(setup.arena);
  Exchange exchange(transport, setup.tensors, setup.codecs, arena->values(), setup.order,
                    arena->adapt(options));
  const RankBlocks blocks{transport.size(), way.ranks_per_block};
  for (std::uint32_t step = 0; step < 3; ++step) {
    auto own = setup.gradients(transport.rank(), step);
    exchange_step(exchange, setup, step, *arena, own);
    if (blocks.size > 1) {  // this rank encodes its block's mean
      const int first_rank = blocks.rank_at(blocks.block_of(transport.rank()), 0);
      own = setup.gradients(first_rank, step);
      for (int place = 1; place < blocks.size; ++place) {
        const auto more = setup.gradients(first_rank + place, step);
        for (std::size_t i = 0; i < own.size(); ++i) own[i] += more[i];
      }
      for (float& value : own) value *= 1.0f / static_cast<float>(blocks.size);
    }
    for (std::size_t t = 0; t < setup.tensors.size(); ++t) {
      const TensorInfo& tensor = setup.tensors[t];
      const auto c = make_codec(setup.codecs[t], tensor);
      if (tensor.elements == 0 || (setup.codecs[t].is_none() && transport.size() == 1)) continue;
      std::vector<float> g(own.begin() + tensor.offset, own.begin() + tensor.offset + tensor.elements);
      if (setup.codecs[t].bucket == BucketSize::column && is_permuted(tensor, setup.codecs[t])) {
        std::vector<float> ordered(g.size());
        to_column_order(tensor.columns(), g.data(), ordered.data());
        g = ordered;
      }
      std::vector<std::byte> bytes(c->encoded_bytes(tensor.elements));
      std::vector<float> decoded(g.size());
      float* r = c->error_feedback() ? residuals[t].data() : nullptr;
      std::vector<Stripe> coded{{0, tensor.elements, 0}};
      if (blocks.size > 1) coded = encoded_stripes(tensor.elements, c->bucket(), blocks, transport.rank(), t);
      std::vector<bool> is_coded(g.size());
      for (const Stripe& s : coded) {
        CodingJob job = c->job(s.first, s.last - s.first, t);
        job.values = g.data() + s.first;
        job.residual = r ? r + s.first : nullptr;
        job.bytes = bytes.data();
        job.out = decoded.data() + s.first;
        c->encode(job, {setup.seed, step, static_cast<std::uint32_t>(transport.rank()), 1});
        c->decode(job);
        std::fill(is_coded.begin() + s.first, is_coded.begin() + s.last, true);
      }
      for (std::size_t i = 0; i < g.size(); ++i) {
        if (!is_coded[i]) continue;
        const double lost = r ? static_cast<double>(r[i]) : static_cast<double>(g[i] - decoded[i]);
        expected[t].gradient += static_cast<double>(g[i]) * static_cast<double>(g[i]);
        expected[t].error += lost * lost;
        expected[t].residual += r ? lost * lost : 0;
      }
    }
  }
  std::vector<CodingError> sums(expected.size()), after(expected.size());
  exchange.take_errors(sums);
  for (std::size_t t = 0; t < expected.size(); ++t) {
    EXPECT_NEAR(sums[t].gradient, expected[t].gradient, 1e-9 * expected[t].gradient) << t;
    EXPECT_NEAR(sums[t].error, expected[t].error, 1e-9 * expected[t].error) << t;
    EXPECT_NEAR(sums[t].residual, expected[t].residual, 1e-9 * expected[t].residual) << t;
    EXPECT_EQ(sums[t].exchanges, 3);
    EXPECT_EQ(sums[t].float32, setup.codecs[t].is_none() ? 3 : 0);
    const std::uint64_t wire = wire_bytes(setup.tensors[t], setup.codecs[t], blocks.ranks);
    const auto between = static_cast<std::uint64_t>(2 * (blocks.count() - 1));
    const auto within = static_cast<std::uint64_t>(blocks.ranks - blocks.count());
    const auto values = static_cast<std::uint64_t>(setup.tensors[t].elements);
    EXPECT_EQ(sums[t].bytes, transport.rank() == 0 ? 3 * (between * wire + within * (wire + 4 * values)) : 0);
  }
  exchange.take_errors(after);
  for (const CodingError& sum : after) EXPECT_EQ(sum.gradient + sum.error, 0.0);
}

}  // namespace lpsgd::exchange_cases
