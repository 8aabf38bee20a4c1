// What `sync`, `optimizer` and `schedule` take together, and the number of local steps.
#include "trainer/sync_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/file.h"
#include "tests/trainer/local_run.h"

namespace lpsgd {
namespace {

using namespace local_run;

std::string error_of(const Overrides& overrides) {
  try {
    const RunConfig run = small_run(overrides);
    check_ranks(run, 4, false);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "no error";
}

TEST(SyncOptions, ConfigurationIsChecked) {
  using ::testing::HasSubstr;
  EXPECT_EQ(error_of({}), "no error");
  EXPECT_THAT(error_of({"sync.steps=2"}),
              HasSubstr("sync.steps: is no key of every_step; allowed with it: kind"));
  EXPECT_THAT(error_of({"sync.kind=local_sgd"}), HasSubstr("sync.kind: local_sgd needs sync.steps"));
  EXPECT_THAT(error_of({"sync.kind=local_sgd", "sync.steps=0"}),
              HasSubstr("sync.steps: expected an integer"));
  EXPECT_THAT(error_of({"sync.kind=local_sgd", "sync.steps=2", "sync.rate=2"}),
              HasSubstr("sync.rate: is no key"));
  EXPECT_THAT(error_of({"sync.kind=post_local_sgd", "sync.steps=2"}),
              HasSubstr("sync.from: first_decay needs"));
  const Overrides post{"sync.kind=post_local_sgd", "sync.steps=2"};
  for (const char* decay : {"{2: 0.1}", "{1: 10, 2: 0.1}", "{every: 2, factor: 0.94}"})
    EXPECT_EQ(error_of(with(post, {std::string("schedule.decay=") + decay})), "no error");
  for (const char* decay : {"{1: 10}", "{every: 2, factor: 1}", "{linear: 0}"})
    EXPECT_THAT(error_of(with(post, {std::string("schedule.decay=") + decay})),
                HasSubstr("sync.from: first_decay needs a factor below 1 in schedule.decay"));
  EXPECT_EQ(error_of(with(post, {"schedule.decay={linear: 0}", "sync.from=1"})), "no error");
  EXPECT_THAT(error_of({"sync.kind=local_sgd", "sync.steps=2", "sync.warmup=linear"}),
              HasSubstr("sync.warmup: needs both"));
  EXPECT_EQ(error_of(with(local, {"sync.fragments=3"})), "no error");
  EXPECT_THAT(error_of(with(local, {"sync.fragments=2"})),
              HasSubstr("sync.fragments: 3 steps cannot be divided by 2 fragments"));
  EXPECT_THAT(error_of(with(local, {"sync.fragments=3", "sync.warmup=linear", "sync.warmup_epochs=1"})),
              HasSubstr("sync.warmup: with fragments or a delay the number of steps is fixed"));
  EXPECT_EQ(error_of(with(local, {"sync.delay=2", "sync.mix=0"})), "no error");
  EXPECT_THAT(
      error_of(with(local, {"sync.delay=3"})),
      HasSubstr("sync.delay: a mean must arrive before the next exchange begins, 3 steps later; allowed: "
                "at most 2"));
  EXPECT_THAT(error_of(with(local, {"sync.fragments=3", "sync.delay=1"})),
              HasSubstr("1 step later; allowed: at most 0"));
  EXPECT_THAT(error_of(with(local, {"sync.delay=1", "sync.warmup=constant", "sync.warmup_epochs=1"})),
              HasSubstr("sync.warmup: with fragments or a delay"));
  EXPECT_THAT(error_of(with(local, {"sync.mix=0.5"})),
              HasSubstr("sync.mix: has a meaning with sync.delay only"));
  EXPECT_THAT(error_of(with(local, {"sync.delay=1", "sync.mix=1"})),
              HasSubstr("sync.mix: expected a number >= 0 and < 1, got '1'"));
  EXPECT_THAT(error_of(with(hierarchical, {"sync.delay=1"})), HasSubstr("sync.delay: is no key of hier"));
  EXPECT_THAT(error_of(with(hierarchical, {"sync.fragments=2"})),
              HasSubstr("sync.fragments: is no key of hier"));
  EXPECT_THAT(error_of({"sync.kind=post_local_sgd", "sync.steps=2", "sync.from=1", "sync.fragments=2"}),
              HasSubstr("sync.fragments: is no key of post_local_sgd"));
  EXPECT_EQ(error_of(hierarchical), "no error");
  EXPECT_THAT(error_of(with(hierarchical, {"sync.ranks_per_block=3"})),
              HasSubstr("sync.ranks_per_block: 4 ranks cannot be divided into blocks of 3"));
  EXPECT_THAT(error_of(with(hierarchical, {"exchange.collective=allreduce", "exchange.codec=none"})),
              HasSubstr("sync.kind: hierarchical_local_sgd averages within blocks"));
  EXPECT_THAT(error_of({"sync.kind=local_sgd", "sync.steps=2", "exchange.collective=simulated"}),
              HasSubstr("sync.kind: local steps need an exchange that averages"));
  for (const char* votes : {"exchange.codec={kind: sign, majority: true}",
                            "exchange.rules=[{kind: conv, codec: {kind: sign, majority: true}}]"}) {
    EXPECT_EQ(error_of({votes}), "no error");
    EXPECT_THAT(error_of(with(local, {votes})), HasSubstr("majority: true sends signs without a scale"));
  }
  EXPECT_EQ(error_of(with(local, {"sync.reset_momentum=true"})), "no error");
  for (const char* adam : {"optimizer={kind: adam}", "optimizer={kind: adamw}"})
    for (const char* steps : {"sync.steps=3", "sync.steps=1"})
      EXPECT_THAT(error_of(with(local, {adam, "sync.reset_momentum=true", steps})),
                  HasSubstr("sync.reset_momentum: adam and adamw correct their moments"));
}

/// The scaled rate is what falls.
TEST(SyncOptions, ALinearDecayFalls) {
  using ::testing::HasSubstr;
  const auto error = [](const char* schedule) {
    return error_of({"train.batch_size=64", std::string("schedule=") + schedule});
  };
  EXPECT_EQ(error("{lr: 0.1, lr_scaling: linear, lr_batch_size: 16, decay: {linear: 0.2}}"), "no error");
  EXPECT_EQ(error("{lr: 0.7, lr_scaling: linear, lr_batch_size: 640, decay: {linear: 0.07}}"), "no error");
  EXPECT_THAT(error("{lr: 0.1, lr_scaling: linear, lr_batch_size: 640, decay: {linear: 0.02}}"),
              HasSubstr("schedule.decay: the rate would rise from 0.01 to linear: 0.02"));
  EXPECT_THAT(error("{lr: 1, decay: {linear: 2}}"), HasSubstr("the rate would rise from 1 to linear: 2"));
  EXPECT_THAT(error_of({"train.batch_size={4: 64, 2: 8}",
                        "schedule={lr: 0.1, lr_scaling: linear, lr_batch_size: 16, decay: {linear: 0.2}}"}),
              HasSubstr("the rate would rise from 0.05 to linear: 0.2"));
}

TEST(SyncOptions, KeysWithoutAnEffectAreRefused) {
  using ::testing::HasSubstr;
  const auto expect = [](const Overrides& overrides, const char* error) {
    EXPECT_THAT(error_of(overrides), HasSubstr(error)) << overrides.back();
  };
  for (const char* key : {"momentum=0.9", "nesterov=false", "momentum_unit_gain=false"})
    expect({"optimizer={kind: adam}", std::string("optimizer.") + key},
           "adam and adamw have moments of their own");
  expect({"optimizer={kind: adam}", "schedule.momentum={1: 0.5}"},
         "schedule.momentum: adam and adamw have moments");
  for (const char* key : {"trust=0.1", "lars_exclude=[]"}) {
    expect({std::string("optimizer.") + key}, "is a key of kind lars");
    EXPECT_EQ(error_of({"optimizer.kind=lars", std::string("optimizer.") + key}), "no error");
  }
  for (const char* key : {"beta1=0.5", "beta2=0.5", "eps=0.1"}) {
    expect({std::string("optimizer.") + key}, "is a key of the kinds adam and adamw");
    EXPECT_EQ(error_of({"optimizer={kind: adamw}", std::string("optimizer.") + key}), "no error");
  }
  expect({"schedule.lr_batch_size=64"},
         "schedule.lr_batch_size: has a meaning with schedule.lr_scaling only");
  EXPECT_EQ(error_of({"schedule.lr_batch_size=64", "schedule.lr_scaling=sqrt"}), "no error");
  expect({"schedule.lr_scaling=linear", "schedule.warmup_from=0"}, "a warm-up starts from schedule.lr");
  EXPECT_EQ(error_of({"schedule.warmup_from=0"}), "no error");
}

/// config.yaml of a run can be given to another one.
TEST(SyncOptions, ResolvedConfigurationsAreAccepted) {
  for (const Overrides& variant :
       {Overrides{}, with(local, {"optimizer={kind: adam}"}), with(local, {"sync.delay=2"}),
        with(hierarchical, {"optimizer.kind=lars", "schedule.lr_scaling=linear"})}) {
    const TestFolder folder;
    const std::string path = folder.path() + "/config.yaml", text = resolved_text(small_run(variant));
    write_file(path, text);
    EXPECT_EQ(resolved_text(load_run_config(path, {}, config::Environment::expand)), text);
  }
}

TEST(SyncOptions, WarmUpsGrow) {
  ScheduleOptions schedule;
  schedule.decay = {{3, 0.1}};
  SyncOptions sync{.kind = SyncKind::local_sgd, .steps = 16, .warmup_epochs = 4};
  const auto at = [&](SyncWarmup warmup) {
    sync.warmup = warmup;
    std::vector<std::int64_t> out;
    for (std::int64_t half = 0; half < 10; ++half)
      out.push_back(local_steps(sync, schedule, half / 2, half % 2 * 5, 10));
    return out;
  };
  using Steps = std::vector<std::int64_t>;
  EXPECT_EQ(at(SyncWarmup::none), Steps(10, 16));
  EXPECT_EQ(at(SyncWarmup::constant), (Steps{1, 1, 1, 1, 1, 1, 1, 1, 16, 16}));
  EXPECT_EQ(at(SyncWarmup::linear), (Steps{1, 2, 4, 6, 8, 10, 12, 14, 16, 16}));
  EXPECT_EQ(at(SyncWarmup::exponential), (Steps{1, 1, 2, 2, 4, 5, 8, 11, 16, 16}));
  // (8 - 1) (3 + 56/98) / 5 is 5, but not in double precision.
  const SyncOptions slow{
      .kind = SyncKind::local_sgd, .steps = 8, .warmup = SyncWarmup::linear, .warmup_epochs = 5};
  EXPECT_EQ(local_steps(slow, schedule, 3, 56, 98), 6);
  EXPECT_EQ(local_steps(slow, schedule, 3, 55, 98), 5);
  const SyncOptions cube{
      .kind = SyncKind::local_sgd, .steps = 64, .warmup = SyncWarmup::exponential, .warmup_epochs = 3};
  EXPECT_EQ(local_steps(cube, schedule, 1, 0, 10), 4);
  EXPECT_EQ(local_steps(cube, schedule, 2, 0, 10), 16);
  const SyncOptions post{.kind = SyncKind::post_local_sgd, .steps = 8};
  EXPECT_EQ(local_steps(post, schedule, 2, 9, 10), 1);
  EXPECT_EQ(local_steps(post, schedule, 3, 0, 10), 8);
  schedule.decay = {{1, 10}, {3, 0.1}, {5, 0.1}};
  EXPECT_EQ(local_steps(post, schedule, 2, 9, 10), 1) << "the rate has only risen";
  EXPECT_EQ(local_steps(post, schedule, 3, 0, 10), 8);
}

}  // namespace
}  // namespace lpsgd
