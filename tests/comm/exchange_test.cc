#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

#include "comm/exchange_plan.h"
#include "comm/exchange_tensor.h"
#include "core/error.h"
#include "tests/comm/exchange_cases.h"

namespace lpsgd {
namespace {

using testing::HasSubstr;

std::vector<std::string> codec_names() {
  std::vector<std::string> names{"mixed"};
  for (const NamedCodec& codec : tested_codecs()) names.emplace_back(codec.name);
  return names;
}

class ExchangeOfRanks : public testing::TestWithParam<int> {
 protected:
  void run(const std::function<void(Transport&)>& body) { run_thread_ranks(GetParam(), body); }
};
INSTANTIATE_TEST_SUITE_P(Ranks, ExchangeOfRanks, testing::Values(1, 2, 3, 4, 5, 7));

TEST_P(ExchangeOfRanks, EqualsTheReferenceHoweverItIsCut) {
  for (const std::string& codec : codec_names()) {
    const ExchangeSetup setup = make_setup(codec);
    const auto expected = reference_means(setup, {GetParam()}, 3);
    run([&](Transport& t) { exchange_cases::equals_reference(t, setup, expected); });
  }
}

TEST_P(ExchangeOfRanks, ReplicasStayEqual) {
  for (const char* codec : {"mixed", "onebit_column", "qsgd2"})
    run([&](Transport& t) { exchange_cases::replicas_stay_equal(t, codec); });
}

TEST_P(ExchangeOfRanks, NoneIsTheMean) {
  for (const Collective collective : {Collective::reduce_broadcast, Collective::allreduce})
    run([&](Transport& t) { exchange_cases::none_is_the_mean(t, collective); });
}

TEST_P(ExchangeOfRanks, ResidualsContinue) {
  for (const char* codec : {"mixed", "onebit64", "onebit_column", "qsgd4_l2_feedback"})
    run([&](Transport& t) { exchange_cases::residuals_continue(t, codec); });
}

TEST_P(ExchangeOfRanks, PartsAreTheWhole) {
  for (const char* codec : {"mixed", "onebit_column", "qsgd4_l2_feedback"})
    run([&](Transport& t) { exchange_cases::parts_are_the_whole(t, codec, Collective::reduce_broadcast); });
  run([&](Transport& t) { exchange_cases::parts_are_the_whole(t, "none", Collective::allreduce); });
}

TEST_P(ExchangeOfRanks, NonFiniteIsNamed) {
  for (const std::string& codec : codec_names())
    run([&](Transport& t) { exchange_cases::non_finite_is_named(t, codec, Collective::reduce_broadcast); });
  run([&](Transport& t) { exchange_cases::non_finite_is_named(t, "none", Collective::allreduce); });
  run([&](Transport& t) { exchange_cases::non_finite_is_named(t, "qsgd4", Collective::simulated); });
}

TEST_P(ExchangeOfRanks, BytesAreThoseAnnounced) {
  for (const std::string& codec : codec_names())
    for (const Collective collective : {Collective::reduce_broadcast, Collective::simulated})
      run([&](Transport& t) { exchange_cases::bytes_are_those_announced(t, codec, collective); });
  run([&](Transport& t) { exchange_cases::bytes_are_those_announced(t, "none", Collective::allreduce); });
}

TEST_P(ExchangeOfRanks, SimulatedDecodesItsOwn) {
  run([&](Transport& t) { exchange_cases::simulated_decodes_its_own(t, "mixed"); });
}

TEST_P(ExchangeOfRanks, ErrorsAreMeasured) {
  for (const char* codec : {"mixed", "onebit_column", "sign_bucket"})
    run([&](Transport& t) { exchange_cases::errors_are_measured(t, codec); });
}

/// Ranks, and ranks per block.
class ExchangeOfBlocks : public testing::TestWithParam<std::pair<int, int>> {
 protected:
  RankBlocks blocks() const { return {GetParam().first, GetParam().second}; }
  exchange_cases::Way way() const { return {Collective::hierarchical, blocks().size}; }
  void run(const std::function<void(Transport&)>& body) { run_thread_ranks(blocks().ranks, body); }
};
INSTANTIATE_TEST_SUITE_P(Ranks, ExchangeOfBlocks,
                         testing::Values(std::pair(3, 1), std::pair(2, 2), std::pair(4, 2), std::pair(6, 2),
                                         std::pair(6, 3), std::pair(9, 3), std::pair(8, 4), std::pair(5, 5)));

TEST_P(ExchangeOfBlocks, EqualsTheReferenceHoweverItIsCut) {
  for (const std::string& codec : codec_names()) {
    const ExchangeSetup setup = make_setup(codec);
    const auto expected = reference_means(setup, blocks(), 3);
    run([&](Transport& t) {
      exchange_cases::equals_reference(t, setup, expected, exchange_cases::host_arena, way());
    });
  }
}

TEST_P(ExchangeOfBlocks, ReplicasStayEqual) {
  run([&](Transport& t) {
    exchange_cases::replicas_stay_equal(t, "mixed", exchange_cases::host_arena, way());
  });
}

TEST_P(ExchangeOfBlocks, NoneIsTheMean) {
  run([&](Transport& t) { exchange_cases::none_is_the_mean(t, way()); });
}

TEST_P(ExchangeOfBlocks, ResidualsContinue) {
  for (const char* codec : {"mixed", "onebit64", "onebit_column"})
    run([&](Transport& t) {
      exchange_cases::residuals_continue(t, codec, exchange_cases::host_arena, way());
    });
}

TEST_P(ExchangeOfBlocks, PartsAreTheWhole) {
  for (const char* codec : {"mixed", "onebit_column"})
    run([&](Transport& t) { exchange_cases::parts_are_the_whole(t, codec, way()); });
}

TEST_P(ExchangeOfBlocks, NonFiniteIsNamed) {
  for (const std::string& codec : codec_names())
    run([&](Transport& t) { exchange_cases::non_finite_is_named(t, codec, way()); });
}

TEST_P(ExchangeOfBlocks, BytesAreThoseAnnounced) {
  for (const std::string& codec : codec_names())
    run([&](Transport& t) { exchange_cases::bytes_are_those_announced(t, codec, way()); });
}

TEST_P(ExchangeOfBlocks, ErrorsAreMeasured) {
  for (const char* codec : {"mixed", "onebit_column"})
    run([&](Transport& t) {
      exchange_cases::errors_are_measured(t, codec, exchange_cases::host_arena, way());
    });
}

TEST(Exchange, AllreduceTakesNoCodec) {
  run_thread_ranks(1, [](Transport& t) {
    const ExchangeSetup setup = make_setup("qsgd4");
    ExchangeOptions options;
    options.collective = Collective::allreduce;
    try {
      exchange_cases::run(t, setup, options, 1);
      FAIL() << "accepted";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("allreduce sums float32 and takes codec none only"));
      EXPECT_THAT(error.what(), HasSubstr("conv1.weight"));
    }
  });
}

TEST(Exchange, FailureOfOneRankInAStepEndsAll) {
  for (const exchange_cases::Way& way :
       std::initializer_list<exchange_cases::Way>{Collective::reduce_broadcast,
                                                  Collective::allreduce,
                                                  Collective::simulated,
                                                  {Collective::hierarchical, 2}}) {
    std::atomic<int> ended{0};
    try {
      run_thread_ranks(4, [&](Transport& t) {
        const ExchangeSetup setup = make_setup("none");
        const ExchangeOptions options = exchange_cases::all_options(setup, way)[1];
        const auto arena = exchange_cases::host_arena(setup.arena);
        Exchange exchange(t, setup.tensors, setup.codecs, arena->values(), setup.order, options);
        try {  // a rank may still be in the step before when another one fails
          exchange_cases::exchange_step(exchange, setup, 0, *arena, setup.gradients(t.rank(), 0));
          exchange.begin(1);
          for (std::size_t i = 0; i < setup.order.size(); ++i) {
            if (t.rank() == 2 && i == 5) throw std::runtime_error("backward failed");
            exchange.submit(setup.order[i]);
          }
          exchange.finish();
          ADD_FAILURE() << "rank " << t.rank() << " finished without rank 2";
        } catch (const CommError&) {
          ++ended;
          EXPECT_THROW(exchange.begin(2), CommError);  // and stays failed
          throw;
        }
      });
      FAIL() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "backward failed");
    }
    EXPECT_EQ(ended, 3);
  }
}

TEST(Exchange, RanksWithOtherCodecsFail) {
  EXPECT_THROW(run_thread_ranks(3,
                                [](Transport& t) {
                                  const ExchangeSetup setup = make_setup(t.rank() == 1 ? "qsgd4" : "qsgd8");
                                  exchange_cases::run(t, setup, {}, 1);
                                }),
               CommError);
}

TEST(Exchange, MisuseIsRefused) {
  run_thread_ranks(1, [](Transport& t) {
    const ExchangeSetup setup = make_setup("none");
    std::vector<float> arena(setup.arena);
    Exchange exchange(t, setup.tensors, setup.codecs, arena, setup.order, {});
    EXPECT_THROW(exchange.submit(setup.order[0]), Error);
    EXPECT_THROW(exchange.finish(), Error);
    exchange.begin(0);
    EXPECT_THROW(exchange.begin(1), Error);
    EXPECT_THROW(exchange.submit(setup.order[1]), Error);
    exchange.submit(setup.order[0]);
    EXPECT_THROW(exchange.finish(), Error);
    EXPECT_THROW(exchange.state(), Error);
    auto order = setup.order;
    order[0] = order[1];
    EXPECT_THROW(Exchange(t, setup.tensors, setup.codecs, arena, order, {}), Error);
    EXPECT_THROW(Exchange(t, setup.tensors, setup.codecs, std::span(arena).first(100), setup.order, {}),
                 Error);
    ExchangeOptions options;
    options.parts = {2, setup.tensors.size() - 1};
    EXPECT_THROW(Exchange(t, setup.tensors, setup.codecs, arena, setup.order, options), Error)
        << "one is left out";
    options.parts.push_back(setup.tensors.size());
    Exchange parts(t, setup.tensors, setup.codecs, arena, setup.order, options);
    EXPECT_THROW(parts.begin(0, 3), Error);
    parts.begin(0, 0);
    EXPECT_THROW(parts.submit(2), Error) << "of another part";
    EXPECT_THROW(parts.release(), Error);
  });
}

// torch_cgx: the loop over packed tensors loses what lies beyond 64 MB.
TEST(Exchange, NothingIsDroppedPastSixtyFourMegabytes) {
  ExchangeSetup setup;
  for (const std::int64_t n : {9'000'001, 5, 9'000'003, 70}) {
    TensorInfo tensor{.name = "t", .kind = TensorKind::bias, .shape = {n}, .elements = n};
    tensor.offset = static_cast<std::int64_t>(setup.arena);
    setup.arena += static_cast<std::size_t>(n + 15) / 16 * 16;
    setup.order.push_back(setup.tensors.size());
    setup.tensors.push_back(tensor);
    setup.codecs.emplace_back();
  }
  for (const std::int64_t pack_bytes : {1 << 30, 1 << 18}) {
    ExchangeOptions options;
    options.pack_bytes = pack_bytes;
    run_thread_ranks(2, [&](Transport& t) {
      const auto arena = exchange_cases::host_arena(setup.arena);
      Exchange exchange(t, setup.tensors, setup.codecs, arena->values(), setup.order, options);
      const auto means = exchange_cases::exchange_step(
          exchange, setup, 0, *arena, std::vector<float>(setup.arena, t.rank() == 0 ? 1.0f : 2.0f));
      for (const TensorInfo& tensor : setup.tensors)
        EXPECT_EQ(std::ranges::count(std::span(means).subspan(static_cast<std::size_t>(tensor.offset),
                                                              static_cast<std::size_t>(tensor.elements)),
                                     1.5f),
                  tensor.elements);
    });
  }
}

TEST(ExchangeState, SizesAreChecked) {
  run_thread_ranks(2, [](Transport& t) {
    const ExchangeSetup setup = make_setup("onebit64");
    std::vector<float> arena(setup.arena);
    Exchange exchange(t, setup.tensors, setup.codecs, arena, setup.order, {});
    ExchangeState state = exchange.state();
    exchange.set_state(state);
    state.round2[3].pop_back();
    try {
      exchange.set_state(state);
      FAIL() << "accepted";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("fc1.weight, round 2"));
      EXPECT_THAT(error.what(), HasSubstr("values, expected"));
    }
    state.round1.pop_back();
    EXPECT_THROW(exchange.set_state(state), Error);
  });
}

/// With other numbers of ranks, and with other blocks of them.
void redistribute(const RankBlocks& before) {
  const ExchangeSetup setup = make_setup("mixed");
  const auto options_of = [](const RankBlocks& blocks) {
    ExchangeOptions options;
    if (blocks.size > 1) options.collective = Collective::hierarchical;
    options.ranks_per_block = blocks.size;
    return options;
  };
  std::vector<ExchangeState> old(static_cast<std::size_t>(before.ranks));
  run_thread_ranks(before.ranks, [&](Transport& t) {
    const auto arena = exchange_cases::host_arena(setup.arena);
    Exchange exchange(t, setup.tensors, setup.codecs, arena->values(), setup.order, options_of(before));
    for (std::uint32_t step = 0; step < 2; ++step)
      exchange_cases::exchange_step(exchange, setup, step, *arena, setup.gradients(t.rank(), step));
    old[static_cast<std::size_t>(t.rank())] = exchange.state();
  });
  const auto round2 = [&](const std::vector<ExchangeState>& states, std::size_t t) {
    const std::int64_t bucket = setup.codecs[t].bucket.of(setup.tensors[t]);
    std::vector<float> whole;
    for (const Stripe& s : stripes(setup.tensors[t].elements, bucket, static_cast<int>(states.size()), t)) {
      const auto& part = states[static_cast<std::size_t>(s.owner)].round2[t];
      whole.insert(whole.end(), part.begin(), part.end());
    }
    return whole;
  };
  // By element, the mean over blocks of what the rank that encodes it keeps.
  const auto round1 = [&](const std::vector<ExchangeState>& states, const RankBlocks& blocks, std::size_t t) {
    const TensorInfo& tensor = setup.tensors[t];
    std::vector<float> mean(static_cast<std::size_t>(tensor.elements));
    for (int r = 0; r < blocks.ranks; ++r) {
      const std::vector<float>& kept = states[static_cast<std::size_t>(r)].round1[t];
      std::size_t next = 0;
      for (const Stripe& s : stripes(tensor.elements, setup.codecs[t].bucket.of(tensor), blocks.ranks, t)) {
        if (s.owner % blocks.size != r % blocks.size) continue;
        for (std::int64_t i = s.first; i < s.last; ++i)
          mean[static_cast<std::size_t>(i)] += kept.at(next++) / static_cast<float>(blocks.count());
      }
      EXPECT_EQ(next, kept.size());
    }
    return mean;
  };
  const auto redistributed = [&](const RankBlocks& ranks, int rank) {
    Redistribution all(setup.tensors, setup.codecs, before, {.ranks = ranks}, rank);
    for (const ExchangeState& state : old) all.add(state);
    return all.take();
  };
  for (const RankBlocks& ranks : {RankBlocks{1}, RankBlocks{2}, RankBlocks{3}, RankBlocks{5},
                                  RankBlocks{2, 2}, RankBlocks{4, 2}, RankBlocks{6, 3}, RankBlocks{6, 2}}) {
    std::vector<ExchangeState> states;
    for (int r = 0; r < ranks.ranks; ++r) states.push_back(redistributed(ranks, r));
    for (std::size_t t = 0; t < setup.tensors.size(); ++t) {
      const bool feedback = setup.codecs[t].error_feedback;
      const std::size_t n = feedback ? static_cast<std::size_t>(setup.tensors[t].elements) : 0;
      if (!feedback) {
        for (const ExchangeState& state : states) EXPECT_TRUE(state.round1[t].empty());
      } else {
        const std::vector<float> expected = round1(old, before, t), kept = round1(states, ranks, t);
        for (std::size_t i = 0; i < n; ++i) ASSERT_NEAR(kept[i], expected[i], 1e-6f);
        // Each rank has the mean itself.
        for (const ExchangeState& state : states)
          for (std::size_t i = 0; ranks.size == 1 && i < n; ++i)
            ASSERT_NEAR(state.round1[t][i], expected[i], 1e-6f);
      }
      EXPECT_EQ(round2(states, t).size(), n);
      EXPECT_EQ(round2(states, t), round2(old, t));
    }
    run_thread_ranks(ranks.ranks, [&](Transport& t) {
      const auto arena = exchange_cases::host_arena(setup.arena);
      Exchange exchange(t, setup.tensors, setup.codecs, arena->values(), setup.order, options_of(ranks));
      exchange.set_state(states[static_cast<std::size_t>(t.rank())]);
      exchange_cases::exchange_step(exchange, setup, 2, *arena, setup.gradients(t.rank(), 2));
    });
  }
  old[1].round2[0].pop_back();
  EXPECT_THROW(redistributed({2}, 0), Error);
}

TEST(ExchangeState, RedistributionKeepsTheMeanAndRecutsRound2) {
  for (const RankBlocks& before : {RankBlocks{3}, RankBlocks{4, 2}, RankBlocks{6, 3}, RankBlocks{2, 2}})
    redistribute(before);
}

TEST(ExchangePlan, CoversEveryElementOnceAndPacksSmallTensors) {
  const ExchangeSetup setup = make_setup("qsgd4");
  std::vector<ExchangeTensor> tensors(setup.tensors.size());
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    tensors[t].info = setup.tensors[t];
    tensors[t].codec = make_codec(setup.codecs[t], setup.tensors[t]);
  }
  for (const RankBlocks& blocks : {RankBlocks{1}, RankBlocks{2}, RankBlocks{3}, RankBlocks{5}, RankBlocks{40},
                                   RankBlocks{6, 3}, RankBlocks{4, 4}})
    for (const ExchangeOptions& options : exchange_cases::all_options(setup)) {
      const int owners = blocks.ranks;
      const auto units = make_plan(tensors, setup.order, {blocks, options.chunk_bytes, *options.pack_bytes});
      std::vector<std::vector<int>> covered;
      for (const TensorInfo& tensor : setup.tensors)
        covered.emplace_back(static_cast<std::size_t>(tensor.elements));
      std::size_t bytes = 0, ready_after = 0;
      for (const Unit& unit : units) {
        EXPECT_GE(unit.ready_after, ready_after);
        ready_after = unit.ready_after;
        bytes += unit.bytes();
        for (int owner = 0; owner < owners; ++owner)
          for (const Segment& segment : unit.owned_by(owner)) {
            const Stripe own = stripe_of(blocks.rank_of(owner), tensors[segment.tensor].info.elements,
                                         tensors[segment.tensor].codec->bucket(), owners, segment.tensor);
            EXPECT_TRUE(own.first <= segment.first && segment.first + segment.n <= own.last);
            EXPECT_EQ(segment.first % tensors[segment.tensor].codec->bucket(), 0);
            EXPECT_LT(segment.at, unit.message_bytes(owner));
            const auto position = std::find(setup.order.begin(), setup.order.end(), segment.tensor);
            EXPECT_LT(static_cast<std::size_t>(position - setup.order.begin()), unit.ready_after);
            for (std::int64_t e = segment.first; e < segment.first + segment.n; ++e)
              ++covered[segment.tensor][static_cast<std::size_t>(e)];
          }
      }
      for (const auto& tensor : covered) EXPECT_THAT(tensor, testing::Each(1));
      std::size_t announced = 0;
      for (std::size_t t = 0; t < tensors.size(); ++t)
        announced += wire_bytes(setup.tensors[t], setup.codecs[t], owners);
      EXPECT_EQ(bytes, announced);
    }
  EXPECT_EQ(make_plan(tensors, setup.order, {{3}, 1 << 20, 1 << 20}).size(), 1u);
  EXPECT_EQ(make_plan(tensors, setup.order, {{3}, 1 << 20, 0}).size(), tensors.size());
  EXPECT_GT(make_plan(tensors, setup.order, {{3}, 1 << 12, 0}).size(), tensors.size());
}

}  // namespace
}  // namespace lpsgd
