// Runs with local steps that are small enough for a unit test.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/trainer/small_run.h"
#include "trainer/local_step.h"
#include "trainer/run_checkpoints.h"

namespace lpsgd::local_run {

inline constexpr std::int64_t samples = 72, per_epoch = 6;  // six batches of 12
inline constexpr std::int64_t steps = 12;

using Overrides = std::vector<std::string>;

inline Overrides with(Overrides first, const Overrides& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

inline double rate_at(std::int64_t step) {
  return 0.1 / static_cast<double>(step + 1);
}

inline std::int64_t interval_at(const RunConfig& run, std::int64_t step) {
  return local_steps(run.sync, run.schedule, step / per_epoch, step % per_epoch, per_epoch);
}

/// A rank that trains and saves.
struct Rank {
  Rank(const RunConfig& config, Transport& transport, const std::string& folder = "unused")
      : run(config),
        model(run, transport.rank(), transport.size()),
        loader(small_loader(run, samples, transport.rank(), transport.size())),
        step(make_step(run, model.codecs, model.network, model.optimizer, transport, nullptr)),
        checkpoints(folder, run, {per_epoch, samples, {}}, model.codecs, transport, model.network, *step) {}

  void train(std::int64_t from, std::int64_t to) {
    for (std::int64_t s = from; s < to; ++s) {
      if (s % per_epoch == 0 || s == from) loader->start(s / per_epoch, s % per_epoch);
      step->set_interval(interval_at(run, s));
      step->run(*loader, s, rate_at(s));
    }
  }
  std::vector<float> weights() { return values(model.network.parameters()); }
  std::vector<std::vector<float>> state() {
    std::vector<std::vector<float>> out{weights()};
    for (const NamedArena& arena : step->arenas()) out.push_back(values(arena.values));
    for (const NamedBuffer& b : model.network.buffers()) out.push_back(values(b.values));
    const auto add = [&](const ExchangeState& residuals) {
      out.insert(out.end(), residuals.round1.begin(), residuals.round1.end());
      out.insert(out.end(), residuals.round2.begin(), residuals.round2.end());
    };
    add(step->state());
    if (const Exchange* block = step->block_exchange()) add(block->state());
    return out;
  }

  const RunConfig run;
  SmallModel model;
  std::unique_ptr<Loader> loader;
  std::unique_ptr<SynchronousStep> step;
  RunCheckpoints checkpoints;
};

inline const Overrides local{"sync.kind=local_sgd", "sync.steps=3"};
inline const Overrides streamed{"sync.kind=block_momentum", "sync.steps=6", "sync.fragments=2",
                                "sync.delay=2", "sync.nesterov=true"};
inline const Overrides hierarchical{"sync.kind=hierarchical_local_sgd", "sync.steps=2", "sync.block_steps=3",
                                    "sync.ranks_per_block=2"};

/// Every model gets the mean of a part of all of them.
template <class Part>
void average(const std::vector<std::unique_ptr<SmallModel>>& models, const Part& part) {
  std::vector<float> mean = values(part(*models[0]));
  for (std::size_t i = 0; i < mean.size(); ++i) {
    for (std::size_t r = 1; r < models.size(); ++r) mean[i] += part(*models[r])[i];
    mean[i] *= 1.0f / static_cast<float>(models.size());
  }
  for (const auto& model : models) std::ranges::copy(mean, part(*model).begin());
}

/// The weights of each rank after `steps` steps, over threads.
inline std::vector<std::vector<float>> trained(const RunConfig& run, int ranks) {
  std::vector<std::vector<float>> out(static_cast<std::size_t>(ranks));
  run_thread_ranks(ranks, [&](Transport& transport) {
    Rank rank(run, transport);
    rank.train(0, steps);
    rank.step->check_finite();
    out[static_cast<std::size_t>(transport.rank())] = rank.weights();
  });
  return out;
}

/// Of the largest magnitude of b.
inline double worst_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
  }
  return worst / largest;
}

}  // namespace lpsgd::local_run
