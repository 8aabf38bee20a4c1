#include "trainer/run_checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <thread>

#include "comm/agree.h"
#include "tests/trainer/small_run.h"
#include "trainer/synchronous_step.h"

namespace lpsgd {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

constexpr std::int64_t samples = 48, batches = 4;
const EpochContents epoch_of_all{batches, samples, "of the lengths"};

TEST(CheckpointIsDue, EveryFewEpochsAndAtTheEnd) {
  const auto due = [](std::int64_t every) {
    std::set<std::int64_t> epochs;
    for (std::int64_t e = 1; e <= 7; ++e)
      if (is_checkpoint_due({.every_epochs = every}, e, 7)) epochs.insert(e);
    return epochs;
  };
  EXPECT_EQ(due(1), (std::set<std::int64_t>{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(due(3), (std::set<std::int64_t>{3, 6, 7}));
  EXPECT_EQ(due(0), (std::set<std::int64_t>{7})) << "0: only at the end";
}

TEST(CheckpointIsDue, TwoInARowAreNeverMoreThanEveryStepsBehind) {
  for (const std::int64_t every : {1, 2, 3, 4, 5, 10, 81}) {
    const CheckpointOptions options{.every_steps = every};
    std::vector<std::int64_t> copies{0, 0};
    for (std::int64_t step = 1; step <= 4 * every; ++step) {
      const bool due = is_step_due(options, step), halfway = is_halfway_due(options, step);
      EXPECT_EQ(due, step % every == 0) << step;
      EXPECT_FALSE(due && halfway) << step;
      if (!due && !halfway) continue;
      copies.push_back(step);
      // Until this one is written the one before counts, and that is written at the next copy at the latest.
      // With 1 no step is trained meanwhile.
      EXPECT_LE(step - copies[copies.size() - (every == 1 ? 2 : 3)], every);
      EXPECT_LE(step - copies[copies.size() - 2], (every + 1) / 2)
          << "the disk has half of the steps for each";
    }
  }
  EXPECT_FALSE(is_halfway_due({.every_steps = 0}, 5));
}

/// A rank that trains and saves.
struct Rank {
  Rank(const RunConfig& run, const std::string& folder, Transport& transport,
       const EpochContents& epoch = epoch_of_all)
      : model(run, transport.rank(), transport.size()),
        loader(small_loader(run, samples, transport.rank(), transport.size())),
        step(run, model.codecs, model.network, model.optimizer, transport, nullptr),
        checkpoints(folder, run, epoch, model.codecs, transport, model.network, step) {}

  void train(std::int64_t from, std::int64_t to) {
    loader->start(0, from);
    for (std::int64_t s = from; s < to; ++s) step.run(*loader, s, 0.1);
  }
  Resumed restore(const std::string& folder) {
    return checkpoints.restore(find_resume_point(folder).value());
  }
  SavedCheckpoint save(const std::string& name, const Position& position, EpochSoFar so_far = {},
                       double lr = 0.1) {
    checkpoints.begin(name, position, std::move(so_far), lr);
    return checkpoints.finish().value();
  }
  /// Everything that training changes.
  std::vector<std::vector<float>> state() {
    std::vector<std::vector<float>> out{values(model.network.parameters())};
    for (const NamedArena& arena : model.optimizer.arenas()) out.push_back(values(arena.values));
    for (const NamedBuffer& b : model.network.buffers()) out.push_back(values(b.values));
    const ExchangeState residuals = step.state();
    out.insert(out.end(), residuals.round1.begin(), residuals.round1.end());
    out.insert(out.end(), residuals.round2.begin(), residuals.round2.end());
    return out;
  }

  SmallModel model;
  std::unique_ptr<Loader> loader;
  SynchronousStep step;
  RunCheckpoints checkpoints;
};

EpochSoFar some_sums() {
  EpochSoFar out;
  out.train = {{.loss = 1, .samples = 2}, {.loss = 3, .samples = 4}};
  out.seconds.mean.total = 5;
  out.bytes_sent = 6;
  return out;
}

/// Two ranks train two steps and save.
void save_two_steps(const RunConfig& run, const std::string& folder) {
  run_thread_ranks(2, [&](Transport& transport) {
    Rank rank(run, folder, transport);
    rank.train(0, 2);
    rank.save("step-000002", {.step = 2, .epoch = 0, .batch = 2}, some_sums(), 0.25);
  });
}

TEST(RunCheckpoints, AdamGoesOnBitForBit) {
  const RunConfig run = small_run({"optimizer={kind: adamw}", "optimizer.noise=0.01"});
  const TestFolder folder;
  save_two_steps(run, folder.path());
  run_thread_ranks(2, [&](Transport& transport) {
    Rank whole(run, folder.path(), transport), resumed(run, folder.path(), transport);
    whole.train(0, 4);
    resumed.restore(folder.path());
    resumed.train(2, 4);
    EXPECT_EQ(resumed.state(), whole.state());
    EXPECT_EQ(resumed.state().size(),
              3 + whole.model.network.buffers().size() + 2 * whole.model.codecs.size());
    Rank forgetful(run, folder.path(), transport);
    forgetful.restore(folder.path());
    std::ranges::fill(forgetful.model.optimizer.second_moment(), 0.0f);
    forgetful.train(2, 4);
    EXPECT_NE(forgetful.state(), whole.state());
  });
}

TEST(RunCheckpoints, RestoresWhatWasSaved) {
  const RunConfig run = small_run();
  const TestFolder folder;
  std::vector<std::vector<std::vector<float>>> saved(2);
  run_thread_ranks(2, [&](Transport& transport) {
    Rank rank(run, folder.path(), transport);
    EXPECT_FALSE(rank.checkpoints.newest());
    rank.train(0, 2);
    rank.save("step-000002", {.step = 2, .epoch = 0, .batch = 2}, some_sums(), 0.25);
    EXPECT_EQ(rank.checkpoints.newest(), folder.path() + "/checkpoints/step-000002");
    saved[static_cast<std::size_t>(transport.rank())] = rank.state();
  });
  EXPECT_NE(saved[0], saved[1]) << "residuals are each rank's own";
  EXPECT_EQ(find_resume_point(folder.path())->manifest.lr, 0.25);
  run_thread_ranks(2, [&](Transport& transport) {
    Rank rank(run, folder.path(), transport);
    EXPECT_NE(rank.state(), saved[static_cast<std::size_t>(transport.rank())]);
    const Resumed resumed = rank.restore(folder.path());
    EXPECT_EQ(rank.state(), saved[static_cast<std::size_t>(transport.rank())]);
    EXPECT_EQ(resumed.position.step, 2);
    EXPECT_EQ(resumed.position.batch, 2);
    EXPECT_FALSE(resumed.other_ranks);
    ASSERT_EQ(resumed.so_far.train.size(), 2u);
    EXPECT_EQ(resumed.so_far.train[1].loss, 3);
    EXPECT_EQ(resumed.so_far.seconds.mean.total, 5);
    EXPECT_EQ(rank.checkpoints.newest(), folder.path() + "/checkpoints/step-000002");
  });
}

/// Bytes that this thread has read by calls; mapped files do not count.
std::int64_t bytes_read() {
  std::ifstream io("/proc/thread-self/io");
  std::string name;
  for (std::int64_t value = 0; io >> name >> value;)
    if (name == "rchar:") return value;
  return -1;
}

TEST(RunCheckpoints, VerifyEachFileOnce) {
  if (bytes_read() < 0) GTEST_SKIP() << "/proc/thread-self/io does not count what is read";
  const RunConfig run = small_run({"optimizer={kind: adamw}"});
  const TestFolder folder;
  save_two_steps(run, folder.path());
  const auto size = [&](const std::string& name) {
    return static_cast<std::int64_t>(fs::file_size(folder.path() + "/checkpoints/step-000002/" + name));
  };
  constexpr std::int64_t beside = 1000;  // of the measuring itself
  for (const bool verified : {false, true})
    run_thread_ranks(2, [&](Transport& transport) {
      Rank rank(run, folder.path(), transport);
      ResumePoint from = find_resume_point(folder.path()).value();
      EXPECT_TRUE(from.verified);
      from.verified = verified;
      const std::int64_t before = bytes_read();
      rank.checkpoints.restore(from);
      const std::int64_t read = bytes_read() - before;
      std::int64_t expected = size("model.safetensors") + size("state-rank0000.safetensors");
      if (transport.rank() == 1) expected += size("state-rank0001.safetensors");
      if (verified) expected = 0;
      EXPECT_GE(read, expected);
      EXPECT_LT(read, expected + beside);
      EXPECT_GT(size("state-rank0000.safetensors"), 2 * beside) << "else the test would not see it";
    });
}

TEST(RunCheckpoints, TrainingGoesOnWhileOneIsWritten) {
  const RunConfig run = small_run();
  const TestFolder folder;
  std::vector<std::vector<std::vector<float>>> begun(2);
  run_thread_ranks(2, [&](Transport& transport) {
    Rank rank(run, folder.path(), transport);
    rank.train(0, 2);
    begun[static_cast<std::size_t>(transport.rank())] = rank.state();
    rank.checkpoints.begin("step-000002", {.step = 2, .epoch = 0, .batch = 2}, some_sums(), 0.25);
    EXPECT_TRUE(rank.checkpoints.in_flight());
    EXPECT_THROW(rank.checkpoints.begin("step-000003", {.step = 3}, {}, 0.25), Error) << "one at a time";
    rank.train(2, 4);
    EXPECT_NE(rank.state(), begun[static_cast<std::size_t>(transport.rank())]);
    while (rank.checkpoints.is_busy()) std::this_thread::yield();
    EXPECT_FALSE(rank.checkpoints.advance()) << "rank 0 has yet to give the folder its name";
    EXPECT_FALSE(rank.checkpoints.newest());
    const SavedCheckpoint saved = rank.checkpoints.finish().value();
    EXPECT_EQ(saved.name, "step-000002");
    EXPECT_FALSE(rank.checkpoints.in_flight());
    EXPECT_FALSE(rank.checkpoints.finish()) << "nothing is left";
    EXPECT_GE(saved.waited, 0);
    EXPECT_TRUE(saved.written > 0 || transport.rank() != 0);
  });
  run_thread_ranks(2, [&](Transport& transport) {
    Rank rank(run, folder.path(), transport);
    rank.restore(folder.path());
    EXPECT_EQ(rank.state(), begun[static_cast<std::size_t>(transport.rank())]);
  });
}

TEST(RunCheckpoints, OfAStateThatIsNotFiniteAreNotWritten) {
  const RunConfig run = small_run();
  const TestFolder folder;
  run_thread_ranks(2, [&](Transport& transport) {
    Rank rank(run, folder.path(), transport);
    rank.train(0, 2);
    if (transport.rank() == 1) {
      ExchangeState state = rank.step.state();
      state.round1[0][3] = std::numeric_limits<float>::infinity();
      rank.step.set_state(state);
    }
    rank.checkpoints.begin("step-000002", {.step = 2, .epoch = 0, .batch = 2}, some_sums(), 0.25);
    try {
      rank.checkpoints.finish();
      ADD_FAILURE() << "saved";
    } catch (const NonFiniteError& e) {
      EXPECT_STREQ(e.what(), "step 1: the residuals of 'conv.weight' on rank 1 hold a NaN or an infinity");
    }
    EXPECT_FALSE(rank.checkpoints.in_flight());
    transport.barrier();
    EXPECT_FALSE(fs::exists(folder.path() + "/checkpoints"));
  });
}

TEST(RunCheckpoints, AFinishedEpochCarriesNoSums) {
  const RunConfig run = small_run();
  const TestFolder folder;
  run_thread_ranks(1, [&](Transport& transport) {
    Rank rank(run, folder.path(), transport);
    rank.save("epoch-0001", {.step = 4, .epoch = 1, .batch = 0}, some_sums(), 0.1);
  });
  EXPECT_TRUE(find_resume_point(folder.path())->manifest.so_far.train.empty());
  EXPECT_EQ(find_resume_point(folder.path())->manifest.so_far.bytes_sent, 0u);
}

TEST(RunCheckpoints, OtherRanksShareTheMeanResidual) {
  const RunConfig run = small_run();
  const TestFolder folder;
  std::vector<ExchangeState> old(2);
  run_thread_ranks(2, [&](Transport& transport) {
    Rank rank(run, folder.path(), transport);
    rank.train(0, 2);
    old[static_cast<std::size_t>(transport.rank())] = rank.step.state();
    rank.save("step-000002", {.step = 2, .epoch = 0, .batch = 2}, some_sums(), 0.1);
  });
  run_thread_ranks(3, [&](Transport& transport) {
    Rank rank(run, folder.path(), transport);
    EXPECT_TRUE(rank.restore(folder.path()).other_ranks);
    const ExchangeState state = rank.step.state();
    for (std::size_t t = 0; t < state.round1.size(); ++t)
      for (std::size_t i = 0; i < state.round1[t].size(); ++i)
        EXPECT_FLOAT_EQ(state.round1[t][i], (old[0].round1[t][i] + old[1].round1[t][i]) / 2);
  });
}

/// Restoring the checkpoint of save_two_steps with `changes` fails on both ranks with `message`.
void expect_refused(const std::vector<std::string>& changes, const std::string& message) {
  const TestFolder folder;
  save_two_steps(small_run(), folder.path());
  const RunConfig run = small_run(changes);
  run_thread_ranks(2, [&](Transport& transport) {
    Rank rank(run, folder.path(), transport);
    try {
      rank.restore(folder.path());
      ADD_FAILURE() << "accepted: " << message;
    } catch (const SharedError& e) {
      EXPECT_EQ(std::string(e.what()), folder.path() + "/checkpoints/step-000002: " + message);
      EXPECT_FALSE(rank.checkpoints.newest());
    }
  });
}

TEST(RunCheckpoints, RefusesAnotherSeed) {
  expect_refused({"train.seed=6"}, "was written with train.seed 5, the configuration says 6");
}

TEST(RunCheckpoints, RefusesAnotherOptimizer) {
  for (const std::string kind : {"lars", "adam"})
    expect_refused({"optimizer={kind: " + kind + "}"},
                   "was written with optimizer.kind sgd, the configuration says " + kind);
  // Older manifests do not name it.
  const TestFolder folder;
  save_two_steps(small_run({"optimizer={kind: adam}"}), folder.path());
  const std::string checkpoint = folder.path() + "/checkpoints/step-000002";
  CheckpointManifest manifest = read_manifest(checkpoint);
  EXPECT_EQ(std::exchange(manifest.optimizer, ""), "adam");
  fs::remove(checkpoint + "/manifest.json");
  write_manifest(checkpoint, manifest);
  run_thread_ranks(2, [&](Transport& transport) {
    const RunConfig run = small_run();
    Rank rank(run, folder.path(), transport);
    try {
      rank.restore(folder.path());
      ADD_FAILURE() << "no error";
    } catch (const SharedError& e) {
      EXPECT_EQ(std::string(e.what()), checkpoint + ": was written with another optimizer.kind");
    }
  });
}

TEST(RunCheckpoints, RefusesAnotherOrderOfSamplesWithinAnEpoch) {
  const auto expect = [](const std::string& key, const std::string& then, const std::string& now) {
    expect_refused(
        {key + "=" + now},
        fmt::format("was written inside an epoch with {} {}, the configuration says {}", key, then, now));
  };
  expect("train.batch_size", "12", "24");
  expect("data.dataset", "shapes", "noise");
  expect("data.train_folder", "\"\"", "other");
  expect("data.shuffle", "true", "false");
  expect("data.train_samples", "0", "48");
  expect("data.truncate", "0", "20");
  expect("data.sort_window", "32", "31");
  expect("data.speech.held_out", "[flmm2, fwxs, mcel, mjdr]", "[flmm2]");
  expect("data.text.train", "\"\"", "a.txt");
  expect("data.text.unit", "words", "characters");
  expect("data.text.eos", "\"<eos>\"", "\"</s>\"");
}

TEST(RunCheckpoints, RefusesOtherFilesWithinAnEpoch) {
  const TestFolder folder;
  const RunConfig run = small_run();
  save_two_steps(run, folder.path());
  const auto expect = [&](const EpochContents& epoch, const std::string& message) {
    run_thread_ranks(2, [&](Transport& transport) {
      Rank rank(run, folder.path(), transport, epoch);
      try {
        rank.restore(folder.path());
        ADD_FAILURE() << "accepted: " << message;
      } catch (const SharedError& e) {
        EXPECT_EQ(std::string(e.what()),
                  folder.path() + "/checkpoints/step-000002: was written inside an epoch of " + message);
      }
    });
  };
  expect({batches + 1, samples, "of the lengths"}, "4 batches, the data set makes it 5");
  expect({batches, samples + 3, "of the lengths"}, "48 samples, the data set has 51");
  expect({batches, samples, "others"}, "sequences that had other numbers of frames");
}

TEST(RunCheckpoints, LimitedSamplesStayThoseOfTheSameShards) {
  const auto restored = [](const std::string& then, const std::string& now, const std::string& limit) {
    const TestFolder folder;
    save_two_steps(small_run({"data.shards=" + then, "data.train_samples=" + limit}), folder.path());
    const RunConfig run = small_run({"data.shards=" + now, "data.train_samples=" + limit});
    std::string error;
    run_thread_ranks(2, [&](Transport& transport) {
      Rank rank(run, folder.path(), transport);
      try {
        rank.restore(folder.path());
      } catch (const SharedError& e) {
        if (transport.rank() == 0) error = e.what();
      }
    });
    return error;
  };
  EXPECT_EQ(restored("a", "b", "0"), "");
  EXPECT_EQ(restored("a", "a", "48"), "");
  EXPECT_THAT(restored("a", "b", "48"),
              HasSubstr("was written inside an epoch with data.shards a, the configuration says b"));
}

/// Speech of these numbers of frames.
class Lengths final : public SequenceDataset {
 public:
  explicit Lengths(std::vector<std::int64_t> frames) : frames_(std::move(frames)) {}
  std::int64_t size() const override { return std::ssize(frames_); }
  std::int64_t classes() const override { return 2; }
  std::string name(std::int64_t) const override { return "a"; }
  std::int64_t features() const override { return 1; }
  std::int64_t frames(std::int64_t i) const override { return frames_[static_cast<std::size_t>(i)]; }
  void read(std::int64_t, std::int64_t, std::int64_t, float*, std::int32_t*) const override {}

 private:
  std::vector<std::int64_t> frames_;
};

TEST(EpochContents, TellLengthsOfSequencesApart) {
  const EpochContents epoch = epoch_contents(Lengths({3, 5, 4}), 2);
  EXPECT_EQ(epoch.batches, 2);
  EXPECT_EQ(epoch.samples, 3);
  EXPECT_EQ(epoch.lengths.size(), 32u);
  EXPECT_EQ(epoch.lengths, epoch_contents(Lengths({3, 5, 4}), 2).lengths);
  EXPECT_NE(epoch.lengths, epoch_contents(Lengths({5, 3, 4}), 2).lengths);
  EXPECT_EQ(epoch_contents(*small_dataset(7), 2).samples, 7);
  EXPECT_EQ(epoch_contents(*small_dataset(7), 2).lengths, "");
}

TEST(RunCheckpoints, BetweenEpochsTheOrderMayChange) {
  const TestFolder folder;
  run_thread_ranks(2, [&](Transport& transport) {
    const RunConfig run = small_run();
    Rank rank(run, folder.path(), transport);
    rank.save("epoch-0001", {.step = 4, .epoch = 1, .batch = 0}, some_sums(), 0.1);
  });
  run_thread_ranks(2, [&](Transport& transport) {
    const RunConfig run = small_run({"data.shuffle=false", "train.batch_size=24", "data.truncate=9"});
    Rank rank(run, folder.path(), transport);
    EXPECT_EQ(rank.restore(folder.path()).position.epoch, 1);
  });
}

TEST(RunCheckpoints, RefusesAnotherCodec) {
  expect_refused(
      {"exchange.codec={kind: onebit, bucket: 64}"},
      "was written with codec {kind: onebit, bucket: 32, error_feedback: true} for 'conv.weight', the "
      "configuration says {kind: onebit, bucket: 64, error_feedback: true}: their residuals differ");
}

std::set<std::string> checkpoint_names(const TestFolder& run_folder) {
  std::set<std::string> out;
  for (const auto& entry : fs::directory_iterator(run_folder.path() + "/checkpoints"))
    out.insert(entry.path().filename());
  return out;
}

TEST(RunCheckpoints, KeepsTheNewest) {
  const RunConfig run = small_run({"checkpoint.keep=2"});
  const TestFolder folder;
  run_thread_ranks(2, [&](Transport& transport) {
    Rank rank(run, folder.path(), transport);
    for (std::int64_t step : {4, 8, 12}) rank.save(step_checkpoint_name(step), {.step = step}, {}, 0.1);
  });
  EXPECT_EQ(checkpoint_names(folder), (std::set<std::string>{"step-000008", "step-000012"}));
}

TEST(RunCheckpoints, AHalfwayOneStaysUntilTheNextStands) {
  const RunConfig run = small_run({"checkpoint.keep=2"});
  const TestFolder folder;
  run_thread_ranks(1, [&](Transport& transport) {
    Rank rank(run, folder.path(), transport);
    const auto save = [&](std::int64_t step, bool halfway) {
      rank.checkpoints.begin(step_checkpoint_name(step), {.step = step}, {}, 0.1, 0, nullptr, halfway);
      rank.checkpoints.finish();
    };
    for (const std::int64_t step : {2, 4, 6, 8}) save(step, step % 4 != 0);
    EXPECT_EQ(checkpoint_names(folder), (std::set<std::string>{"step-000004", "step-000008"}));
    save(10, true);
    EXPECT_EQ(checkpoint_names(folder), (std::set<std::string>{"step-000004", "step-000008", "step-000010"}))
        << "it does not count for keep";
    EXPECT_EQ(find_resume_point(folder.path())->manifest.position.step, 10);
  });
  run_thread_ranks(1, [&](Transport& transport) {  // a run that goes on from it
    Rank rank(run, folder.path(), transport);
    rank.restore(folder.path());
    rank.save(step_checkpoint_name(12), {.step = 12});
  });
  EXPECT_EQ(checkpoint_names(folder), (std::set<std::string>{"step-000008", "step-000012"}));
}

TEST(RunCheckpoints, ASaveThatFailsLeavesTheLastOne) {
  const RunConfig run = small_run();
  const TestFolder folder, elsewhere;
  save_two_steps(run, folder.path());
  const std::string link = folder.path() + "/checkpoints", target = elsewhere.path() + "/checkpoints";
  fs::rename(link, target);
  fs::create_symlink(target, link);
  run_thread_ranks(2, [&](Transport& transport) {
    Rank rank(run, folder.path(), transport);
    // A file where the checkpoint is to be built cannot hold a folder's files.
    std::ofstream(folder.path() + "/checkpoints/epoch-0001") << "not a folder";
    transport.barrier();
    EXPECT_THROW(rank.save("epoch-0001/below", {.step = 4, .epoch = 1}, {}, 0.1), SharedError);
    EXPECT_FALSE(rank.checkpoints.newest());
  });
  EXPECT_TRUE(fs::is_symlink(link)) << "the user's";
  EXPECT_EQ(find_resume_point(folder.path())->folder, folder.path() + "/checkpoints/step-000002");
}

TEST(ResumePoint, IsTheNewestCompleteCheckpoint) {
  const RunConfig run = small_run();
  const TestFolder folder;
  EXPECT_FALSE(find_resume_point(folder.path() + "/absent"));
  EXPECT_FALSE(find_resume_point(folder.path())) << "an empty folder";
  fs::create_directories(folder.path() + "/checkpoints/epoch-0009");
  EXPECT_FALSE(find_resume_point(folder.path())) << "a folder without a manifest";
  run_thread_ranks(1, [&](Transport& transport) {
    Rank rank(run, folder.path(), transport);
    rank.save("step-000012", {.step = 12}, {}, 0.1);
    rank.save("epoch-0001", {.step = 4, .epoch = 1}, {}, 0.1);
  });
  EXPECT_EQ(find_resume_point(folder.path())->folder, folder.path() + "/checkpoints/step-000012");
  EXPECT_EQ(find_resume_point(folder.path())->manifest.position.step, 12);
  fs::rename(folder.path() + "/checkpoints/step-000012", folder.path() + "/checkpoints/step-000012.copy");
  EXPECT_EQ(find_resume_point(folder.path())->folder, folder.path() + "/checkpoints/epoch-0001")
      << "a name of the user's own";
}

}  // namespace
}  // namespace lpsgd
