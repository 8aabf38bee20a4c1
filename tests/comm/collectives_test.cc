// Ranks that are at different places, and ranks that do not come: what the others are told, and how soon.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "comm/agree.h"
#include "comm/block_transport.h"
#include "comm/transport_over.h"
#include "core/clock.h"
#include "core/error.h"
#include "tests/comm/captured_log.h"
#include "tests/comm/exchange_cases.h"

namespace lpsgd {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;

void sleep(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

/// The error that ends ranks with this body.
std::string error_of(int ranks, const std::function<void(Transport&)>& body) {
  try {
    run_thread_ranks(ranks, body);
  } catch (const CommError& error) {
    return error.what();
  }
  return "none";
}

void gather(Transport& t, std::size_t bytes) {
  const std::vector<std::byte> mine(bytes);
  std::vector<std::byte> all(bytes * static_cast<std::size_t>(t.size()));
  t.all_gather(mine, all);
}

constexpr const char* place = "tests/comm/collectives_test.cc:[0-9]+";

std::string regex(const std::string& text) {  // with @ for the place
  std::string out = "the ranks are at different places: ";
  for (const char c : text) {
    if (c == '@')
      out += place;
    else if (c == '(' || c == ')')
      out += std::string("\\") + c;
    else
      out += c;
  }
  return out;
}

TEST(Collectives, OtherKinds) {
  const auto error = error_of(2, [](Transport& t) {
    const ScopedPhase phase(t, t.rank() == 0 ? Phase::checkpoint : Phase::evaluation);
    t.rank() == 0 ? t.barrier() : gather(t, 24);
  });
  EXPECT_THAT(error,
              MatchesRegex(regex("rank 1 is at all_gather of 24 bytes in evaluation (@, call 1), rank 0 "
                                 "at barrier in checkpoint (@, call 1)")));
}

TEST(Collectives, OtherRoots) {
  const auto error = error_of(3, [](Transport& t) {
    std::array<std::byte, 5> bytes{};
    t.broadcast(bytes, 1);
    t.broadcast(bytes, t.rank() == 2 ? 0 : 1);
  });
  EXPECT_THAT(error, HasSubstr("broadcast of 5 bytes from rank 0 in start ("));
  EXPECT_THAT(error, HasSubstr("broadcast of 5 bytes from rank 1 in start ("));
  EXPECT_THAT(error, HasSubstr(", call 2)"));
}

TEST(Collectives, OtherSizes) {
  const auto error = error_of(2, [](Transport& t) { gather(t, t.rank() == 0 ? 16 : 17); });
  EXPECT_THAT(error, MatchesRegex(regex("rank 1 is at all_gather of 17 bytes in start (@, call 1), rank 0 at "
                                        "all_gather of 16 bytes in start (@, call 1)")));
}

TEST(Collectives, OtherPhases) {
  const auto error = error_of(2, [](Transport& t) {
    const ScopedPhase training(t, Phase::training);
    {
      const ScopedPhase data(t, Phase::data);
      t.barrier();
    }
    if (t.rank() == 0) return t.barrier();
    const ScopedPhase end(t, Phase::end);
    t.barrier();
  });
  EXPECT_THAT(error,
              MatchesRegex(regex("rank 1 is at barrier in end (@, call 2), rank 0 at barrier in training "
                                 "(@, call 2)")));
}

// The same call of all_gather is an error where it is made for another reason.
TEST(Collectives, OtherPlaces) {
  const auto error = error_of(2, [](Transport& t) {
    if (t.rank() == 0)
      t.all_equal(1);
    else
      t.all_gather(1.0);
  });
  EXPECT_THAT(error, MatchesRegex(regex("rank 1 is at all_gather of 8 bytes in start (@, call 1), rank 0 at "
                                        "all_gather of 8 bytes in start (@, call 1)")));
  const auto in_try = error_of(2, [](Transport& t) {
    if (t.rank() == 0)
      collective_try(t, [] {});
    else
      collective_try(t, [] {});
  });
  EXPECT_THAT(in_try, HasSubstr("the ranks are at different places: rank 1 is at all_gather of 8 bytes"));
}

TEST(Collectives, OtherNumbersOfCalls) {
  const CollectiveCall call{
      .number = 7, .bytes = 24, .kind = CollectiveCall::Kind::all_gather, .file = {"a.cc"}};
  std::vector<CollectiveCall> calls(6, call);
  EXPECT_EQ(difference(calls), "");
  calls[2] = {};  // has not come
  EXPECT_EQ(difference(calls), "");
  calls[3].number = calls[4].number = 8;
  EXPECT_EQ(
      difference(calls),
      "the ranks are at different places: ranks 3-4 are at all_gather of 24 bytes in start (a.cc:0, call "
      "8), ranks 0-1, 5 at all_gather of 24 bytes in start (a.cc:0, call 7)");
  calls[5].phase = Phase::end;
  EXPECT_THAT(difference(calls),
              testing::EndsWith("ranks 0-1 at all_gather of 24 bytes in start (a.cc:0, call "
                                "7), 1 elsewhere"));
  calls.assign(2, call);
  calls[1].kind = static_cast<CollectiveCall::Kind>(200);
  EXPECT_THAT(difference(calls), HasSubstr("rank 1 is at ? of 24 bytes"));
  EXPECT_EQ(difference({}), "");
}

// What arrives may come from another program, or from damaged memory.
TEST(Collectives, WhatNoRankCanSend) {
  const Place here("a.cc", 1);
  const auto told = [&](const std::function<void(Transport&)>& honest, std::uint64_t said) {
    return error_of(3, [&](Transport& t) { t.rank() == 1 ? void(t.all_gather(said, here)) : honest(t); });
  };
  const std::string end = ": it runs another program, or its memory or the network is damaged";
  EXPECT_EQ(told([&](Transport& t) { t.all_gather_text("a", here); }, std::uint64_t{1} << 40),
            "rank 1 has sent the length 1099511627776 of a text" + end);
  const auto note = [&](const std::string& text) {
    return error_of(2, [&](Transport& t) {
      t.rank() == 1 ? void(t.all_gather_text(text, here))
                    : collective_try(
                          t, [] {}, here);
    });
  };
  EXPECT_EQ(note("x"), "rank 1 has sent 'x' as its error" + end);
  EXPECT_EQ(note("70"), "rank 1 has sent '70' as its error" + end);
  EXPECT_EQ(note("0 fine"), "rank 1 has sent '0 fine' as its error" + end);
}

TEST(Collectives, ARecordThatIsNone) {
  EXPECT_THAT(
      error_of(2,
               [](Transport& t) {
                 if (t.rank() == 0) return t.barrier();
                 CollectiveCall none, from_rank_0;
                 const std::array requests{
                     t.isend(std::as_bytes(std::span(&none, 1)), 0, Transport::control_tag),
                     t.irecv(std::as_writable_bytes(std::span(&from_rank_0, 1)), 0, Transport::control_tag)};
                 t.wait(requests);
               }),
      HasSubstr("rank 1 has sent no record of a collective"));
}

// The exit status of an error may have several digits.
TEST(Agreement, KeepsTheExitStatus) {
  class Unusual : public Error {
   public:
    Unusual() : Error("unusual", 70) {}
  };
  run_thread_ranks(2, [](Transport& t) {
    try {
      collective_try(t, [&] {
        if (t.rank() == 1) throw Unusual();
      });
      ADD_FAILURE();
    } catch (const SharedError& e) {
      EXPECT_EQ(e.exit_status(), 70);
      EXPECT_STREQ(e.what(), "rank 1: unusual");
    }
  });
}

// A rank that is elsewhere is noticed although a third one does not come at all.
TEST(Collectives, ADifferenceIsAnErrorBeforeAllHaveCome) {
  const double start = now_seconds();
  const auto error = error_of(3, [](Transport& t) {
    if (t.rank() == 2) sleep(0.5);
    t.rank() == 0 ? t.barrier() : gather(t, 3);
  });
  EXPECT_THAT(error, HasSubstr("rank 1 is at all_gather of 3 bytes"));
  EXPECT_LT(now_seconds() - start, 5);
}

TEST(Collectives, NoBytesAndOneRank) {
  run_thread_ranks(3, [](Transport& t) { gather(t, 0); });
  run_thread_ranks(1, [](Transport& t) {
    t.barrier();
    std::array<std::byte, 2> bytes{};
    t.broadcast(bytes, 0);
    EXPECT_EQ(t.all_gather(2.5), std::vector{2.5});
  });
}

Limits limits_of(double step, double outside) {
  Limits limits;
  limits.step.seconds = step;
  limits.outside_step.seconds = outside;
  return limits;
}

TEST(Limits, ARankThatDoesNotCome) {
  const CapturedLog log;
  double seconds = 0;
  const auto error = error_of(3, [&](Transport& t) {
    t.collectives().limits = limits_of(100, 0.8);
    const ScopedPhase phase(t, Phase::evaluation);
    t.barrier();
    const double start = now_seconds();
    if (t.rank() == 1) return sleep(1.5);
    try {
      gather(t, 24);
    } catch (const CommError&) {
      if (t.rank() == 0) seconds = now_seconds() - start;
      throw;
    }
  });
  EXPECT_THAT(error, MatchesRegex(std::string("all_gather of 24 bytes in evaluation \\(") + place +
                                  ", call 2\\) has waited 1 s for rank 1, as long as "
                                  "exchange.timeout_outside_step allows"));
  EXPECT_GE(seconds, 0.8);
  EXPECT_LT(seconds, 1.4);  // while the others wait nothing else ends them
  EXPECT_GE(log.count("has waited 0 s for rank 1"), 2) << log.text();  // of both, after 0.2 s and 0.4 s
  EXPECT_GE(log.count("has waited 1 s for rank 1"), 1) << log.text();
}

TEST(Limits, APhaseHasItsOwn) {
  const auto error = error_of(2, [&](Transport& t) {
    t.collectives().limits = limits_of(0.4, 100);
    const ScopedPhase phase(t, Phase::training);
    if (t.rank() == 1) return sleep(1);
    t.barrier();
  });
  EXPECT_THAT(error, HasSubstr("barrier in training ("));
  EXPECT_THAT(error, HasSubstr("for rank 1, as long as exchange.timeout allows"));
}

TEST(Limits, NoneAndEnough) {
  for (const double limit : {0.0, 5.0})
    EXPECT_EQ(error_of(2,
                       [&](Transport& t) {
                         t.collectives().limits = limits_of(limit, limit);
                         if (t.rank() == 1) sleep(0.5);
                         t.barrier();
                       }),
              "none");
}

// Progress counts from the last one, not from the start.
TEST(Limits, ProgressBeginsTheWaitAnew) {
  EXPECT_EQ(error_of(4,
                     [&](Transport& t) {
                       t.collectives().limits = limits_of(1, 1);
                       sleep(0.7 * t.rank());
                       t.barrier();
                     }),
            "none");
}

std::string step_error(Collective collective, double late, const CapturedLog&) {
  const ExchangeSetup setup = make_setup(collective == Collective::allreduce ? "none" : "qsgd4");
  return error_of(3, [&](Transport& t) {
    t.collectives().limits = limits_of(0.8, 100);
    ExchangeOptions options;
    options.collective = collective;
    std::vector<float> arena(setup.arena);
    Exchange exchange(t, setup.tensors, setup.codecs, arena, setup.order, options);
    for (std::uint32_t step = 0; step < 3; ++step) {
      if (t.rank() == 1 && step == 2) sleep(late);
      exchange.begin(step);
      for (const std::size_t tensor : setup.order) exchange.submit(tensor);
      exchange.finish();
    }
  });
}

TEST(Limits, ARankThatDoesNotComeToAStep) {
  const std::string first = make_setup("qsgd4").tensors[make_setup("qsgd4").order[0]].name;
  for (const Collective collective :
       {Collective::reduce_broadcast, Collective::allreduce, Collective::simulated}) {
    const CapturedLog log;
    EXPECT_EQ(step_error(collective, 0.5, log), "none");
    EXPECT_EQ(
        step_error(collective, 2, log),
        fmt::format("step 2: the exchange of {} has waited 1 s for {}, as long as exchange.timeout allows",
                    first, collective == Collective::reduce_broadcast ? "rank 1" : "other ranks"));
    EXPECT_GE(log.count("step 2: the exchange of " + first + " has waited 0 s"), 2) << log.text();
  }
}

/// Counts the limits that were reached.
class NotesLimits final : public TransportOver {
 public:
  explicit NotesLimits(Transport& inner) : TransportOver(inner) {}
  Request isend(std::span<const std::byte> bytes, int to, int tag) override {
    return inner_.isend(bytes, to, tag);
  }
  Request irecv(std::span<std::byte> bytes, int from, int tag) override {
    return inner_.irecv(bytes, from, tag);
  }
  Request iallreduce(std::span<float> values) override { return inner_.iallreduce(values); }
  bool test(Request request) override { return inner_.test(request); }
  Transport& control() override { return inner_.control(); }
  void timed_out(const std::string&) noexcept override { ++reached; }

  std::atomic<int> reached{0};
};

TEST(Limits, ABlockNamesRanksOfTheRun) {
  const CapturedLog log;
  const ExchangeSetup setup = make_setup("qsgd4");
  std::atomic<int> reached{0};
  const std::string error = error_of(4, [&](Transport& all) {
    NotesLimits noted(all);
    noted.collectives().limits = limits_of(0.8, 0.8);
    const std::unique_ptr<Transport> block = make_block_transport(noted, all.rank() / 2 * 2, 2);
    std::vector<float> arena(setup.arena);
    ExchangeOptions options;
    options.first_rank = all.rank() / 2 * 2;
    Exchange exchange(*block, setup.tensors, setup.codecs, arena, setup.order, options);
    if (all.rank() == 3) return sleep(2);
    exchange.begin(0);
    for (const std::size_t tensor : setup.order) exchange.submit(tensor);
    try {
      exchange.finish();
    } catch (const CommError&) {
      reached = noted.reached.load();
      throw;
    }
  });
  EXPECT_THAT(error, HasSubstr("has waited 1 s for rank 3, as long as exchange.timeout allows"));
  EXPECT_GE(log.count("has waited 0 s for rank 3"), 2) << log.text();
  EXPECT_EQ(reached, 1) << "the transport below, which may have to end queued work, knows of it";
}

TEST(Limits, CollectivesOfABlockNameRanksOfTheRun) {
  const std::string missing = error_of(4, [&](Transport& all) {
    all.collectives().limits = limits_of(0.8, 0.8);
    const std::unique_ptr<Transport> block = make_block_transport(all, all.rank() / 2 * 2, 2);
    if (all.rank() == 3) return sleep(1.5);
    block->barrier();
  });
  EXPECT_THAT(missing, HasSubstr("for rank 3, as long as"));
  const std::string apart = error_of(4, [&](Transport& all) {
    const std::unique_ptr<Transport> block = make_block_transport(all, all.rank() / 2 * 2, 2);
    if (all.rank() == 3)
      gather(*block, 24);
    else
      block->barrier();
  });
  EXPECT_THAT(apart, HasSubstr("rank 3 is at all_gather of 24 bytes"));
  EXPECT_THAT(apart, HasSubstr("rank 2 at barrier"));
}

TEST(Patience, CountsRoundsUpToSomeSeconds) {
  Patience patience({10, "a key"});
  EXPECT_EQ(patience.period(), 2.5);
  EXPECT_EQ(Patience({600, ""}).period(), 30);
  EXPECT_EQ(Patience({0, ""}).period(), 30);
  EXPECT_FALSE(patience.due());
  sleep(0.05);
  EXPECT_FALSE(patience.due());
  EXPECT_GE(patience.waited(), 0.05);
  patience.reset();
  EXPECT_EQ(patience.waited(), 0);
}

/// The message and status with which ranks refuse these facts.
std::pair<std::string, int> disagreement(int ranks, const std::function<std::vector<Fact>(int)>& facts) {
  std::pair<std::string, int> first;
  std::atomic<int> refused{0};
  try {
    run_thread_ranks(ranks, [&](Transport& t) {
      try {
        require_agreement(t, facts(t.rank()));
      } catch (const SharedError& error) {
        ++refused;
        if (t.rank() == 0) first = {error.what(), error.exit_status()};
      }
      t.barrier();
    });
  } catch (const CommError& error) {
    ADD_FAILURE() << error.what();
  }
  EXPECT_TRUE(refused == 0 || refused == ranks) << refused;
  return first;
}

TEST(Agreement, TheSameFactsPass) {
  EXPECT_EQ(disagreement(3, [](int) { return std::vector<Fact>{{"a", "1"}, {"b", ""}}; }).first, "");
  EXPECT_EQ(disagreement(3, [](int) { return std::vector<Fact>{}; }).first, "");
}

TEST(Agreement, TheFirstDifferenceIsNamedWithValuesAndRanks) {
  const auto [message, status] = disagreement(4, [](int rank) {
    return std::vector<Fact>{
        {"same", "1"}, {"lr", rank == 1 ? "0.2" : "0.1"}, {"seed", rank < 2 ? "1" : "2"}};
  });
  EXPECT_EQ(message, "the ranks disagree on lr: 0.1 on ranks 0, 2-3, 0.2 on rank 1; also on seed");
  EXPECT_EQ(status, 2);
}

TEST(Agreement, FactsThatSomeRanksDoNotHave) {
  const auto message = disagreement(2, [](int rank) {
                         std::vector<Fact> facts{{"b", "2"}};
                         if (rank == 0) facts[0] = {"a", ""};
                         return facts;
                       }).first;
  EXPECT_EQ(message, "the ranks disagree on a: \"\" on rank 0, nothing on rank 1; also on b");
}

TEST(Agreement, LongValuesAreLeftOutAndManyNamesAreCounted) {
  const auto message = disagreement(2, [](int rank) {
                         std::vector<Fact> facts{{"text", std::string(81, rank == 0 ? 'x' : 'y')}};
                         for (const char* name : {"a", "b", "c", "d", "e", "f", "g"})
                           facts.push_back({name, rank == 0 ? "0" : "1"});
                         return facts;
                       }).first;
  EXPECT_EQ(message,
            "the ranks disagree on text: one value on rank 0, another on rank 1; also on a, b, c, d, e "
            "and 2 more");
}

TEST(Collectives, EachFirstWaitsForWhatIsOnItsWay) {
  run_thread_ranks(2, [](Transport& t) {
    int calls = 0;
    t.collectives().before = [&] { ++calls; };
    t.barrier();
    EXPECT_EQ(calls, 1);
    std::vector<float> values(3, static_cast<float>(t.rank()));
    t.average(values);
    EXPECT_EQ(calls, 2);
    t.all_gather(1.0);
    EXPECT_EQ(calls, 3);
    t.broadcast(std::as_writable_bytes(std::span(values)), 1);
    EXPECT_EQ(calls, 4);
    t.collectives().before = nullptr;
    t.barrier();
    EXPECT_EQ(calls, 4);
  });
}

}  // namespace
}  // namespace lpsgd
