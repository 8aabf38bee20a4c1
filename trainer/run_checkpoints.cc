#include "trainer/run_checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>
#include <string_view>
#include <utility>

#include "comm/agree.h"
#include "core/checksum.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"
#include "trainer/evaluate.h"
#include "trainer/host_state.h"
#include "trainer/non_finite.h"

namespace lpsgd {

namespace {

/// Which sample is in which place of an epoch depends on these keys, beside seed and batch size.
constexpr std::string_view order_keys[] = {"data.dataset",       "data.train_folder",    "data.shuffle",
                                           "data.train_samples", "data.shards",          "data.truncate",
                                           "data.sort_window",   "data.speech.held_out", "data.text.train",
                                           "data.text.unit",     "data.text.eos"};

/// A key's value in force.
std::string value_of(const config::Value& tree, std::string_view key) {
  const config::Value* value = &tree;
  for (const auto part : std::views::split(key, '.'))
    value = value ? value->find(std::string_view(part.begin(), part.end())) : nullptr;
  require(value != nullptr, "the keys that a checkpoint records exist");
  return config::emit_line(*value);
}

std::string optimizer_of(const RunConfig& run) {
  return value_of(config::write(run), "optimizer.kind");
}

/// What the state of another kind means is something else. Older checkpoints do not name theirs.
void check_optimizer(const ResumePoint& from, const RunConfig& run) {
  const std::string now = optimizer_of(run), &then = from.manifest.optimizer;
  if (!then.empty() && then != now)
    throw ConfigError(fmt::format("{}: was written with optimizer.kind {}, the configuration says {}",
                                  from.folder, then, now));
}

std::vector<std::pair<std::string, std::string>> sample_order(const RunConfig& run) {
  const config::Value tree = config::write(run);
  std::vector<std::pair<std::string, std::string>> out;
  for (const std::string_view key : order_keys) {
    const std::string value = value_of(tree, key);
    // With a limit, what the shards hold beyond it also decides which samples are used.
    if (key == "data.shards" && run.data.train_samples == 0) continue;
    out.emplace_back(key, value);
  }
  return out;
}

/// Inside an epoch, what is left of it must be what was left when the checkpoint was written.
void check_order(const std::string& folder, const CheckpointManifest& manifest, const RunConfig& run,
                 const EpochContents& epoch) {
  const auto compare = [&](const std::string& key, const std::string& then, const std::string& now) {
    if (then != now)
      throw ConfigError(fmt::format("{}: was written inside an epoch with {} {}, the configuration says {}",
                                    folder, key, then, now));
  };
  compare("train.batch_size", std::to_string(manifest.batch_size), std::to_string(run.train.batch_size));
  for (const auto& [key, now] : sample_order(run))
    for (const auto& [written, then] : manifest.order)
      if (written == key) compare(key, then, now);
  if (manifest.batches != epoch.batches)
    throw ConfigError(fmt::format("{}: was written inside an epoch of {} batches, the data set makes it {}",
                                  folder, manifest.batches, epoch.batches));
  if (manifest.samples != 0 && manifest.samples != epoch.samples)
    throw ConfigError(fmt::format("{}: was written inside an epoch of {} samples, the data set has {}",
                                  folder, manifest.samples, epoch.samples));
  if (!manifest.lengths.empty() && manifest.lengths != epoch.lengths)
    throw ConfigError(
        fmt::format("{}: was written inside an epoch of sequences that had other numbers of frames", folder));
}

/// Of changes that are sent once more, because their mean is dropped: the residuals hold a part of them.
void clear(ExchangeState& residuals, const SyncPosition::Pending& tensors) {
  for (auto* round : {&residuals.round1, &residuals.round2})
    for (auto t = static_cast<std::size_t>(tensors.first);
         t < std::min(static_cast<std::size_t>(tensors.last), round->size()); ++t)
      std::fill((*round)[t].begin(), (*round)[t].end(), 0.0f);
}

/// Not if blocks were others, or there were none; their residuals then start from zero.
bool fits(const ExchangeState& residuals, const Exchange* exchange) {
  if (residuals.round1.empty()) return false;
  const std::vector<ResidualSizes> sizes = exchange->residual_sizes();
  for (std::size_t t = 0; t < sizes.size(); ++t)
    if (residuals.round1[t].size() != sizes[t].round1 || residuals.round2[t].size() != sizes[t].round2)
      return false;
  return true;
}

}  // namespace

bool is_checkpoint_due(const CheckpointOptions& options, std::int64_t epoch, std::int64_t epochs) {
  return epoch == epochs || (options.every_epochs > 0 && epoch % options.every_epochs == 0);
}

bool is_step_due(const CheckpointOptions& options, std::int64_t step) {
  return options.every_steps > 0 && step % options.every_steps == 0;
}

bool is_halfway_due(const CheckpointOptions& options, std::int64_t step) {
  return options.every_steps > 1 && step % options.every_steps == options.every_steps / 2;
}

std::string text(const SavedCheckpoint& saved) {
  return fmt::format("checkpoint {}: training waited {:.2f} s, written in {:.2f} s", saved.name, saved.waited,
                     saved.written);
}

EpochContents epoch_contents(const Dataset& train, std::int64_t batches) {
  EpochContents out{batches, train.size(), {}};
  const auto* sequences = dynamic_cast<const SequenceDataset*>(&train);
  if (!sequences) return out;
  std::vector<std::int64_t> frames;
  for (std::int64_t i = 0; i < train.size(); ++i) frames.push_back(sequences->frames(i));
  out.lengths = checksum(std::as_bytes(std::span(frames)));
  return out;
}

RunCheckpoints::RunCheckpoints(std::string run_folder, const RunConfig& run, EpochContents epoch,
                               const std::vector<CodecSpec>& codecs, Transport& transport, Network& network,
                               SynchronousStep& step)
    : run_folder_(run_folder),
      run_(run),
      epoch_(std::move(epoch)),
      codecs_(codecs),
      transport_(transport),
      network_(network),
      step_(step),
      snapshot_(network, step, transport.rank() == 0),
      writer_(transport, std::move(run_folder), run.checkpoint.keep) {}

bool RunCheckpoints::drops_pending(const CheckpointManifest& manifest) const {
  return manifest.sync.has_pending() && !step_.sync_position().has_pending();
}

Resumed RunCheckpoints::restore(const ResumePoint& from) {
  const std::string& folder = from.folder;
  const CheckpointManifest& manifest = from.manifest;
  Resumed out{manifest.position, manifest.so_far};
  CheckpointRead read;
  collective_try(transport_, [&] {
    if (manifest.seed != static_cast<std::uint32_t>(run_.train.seed))
      throw ConfigError(fmt::format("{}: was written with train.seed {}, the configuration says {}", folder,
                                    manifest.seed, run_.train.seed));
    check_optimizer(from, run_);
    if (manifest.position.batch != 0) check_order(folder, manifest, run_, epoch_);
    HostState host(network_, step_.arenas());
    TrainingState state{&network_.tensors(), host.parameters(), host.arenas(), host.buffers(), {}};
    state.frozen = host.frozen();
    if (manifest.position.batch != 0) state.carried = host.carried();
    state.ranks_per_block = step_.sync_position().ranks_per_block;
    state.residual_layout = step_.residual_layout();
    if (step_.block_exchange()) state.block_layout = step_.block_exchange()->residual_layout();
    ExchangeState residuals, block_residuals;
    read = read_checkpoint(from, transport_.rank(), codecs_, state, residuals,
                           step_.block_exchange() ? &block_residuals : nullptr);
    host.upload();
    if (read.averaged)
      step_.set_sync_position({.started = manifest.sync.started});
    else
      step_.set_sync_position(manifest.sync);
    if (drops_pending(manifest)) clear(residuals, manifest.sync.pending);
    step_.set_state(residuals);
    if (fits(block_residuals, step_.block_exchange())) step_.block_exchange()->set_state(block_residuals);
  });
  newest_ = folder;
  out.other_ranks = read.other_ranks;
  if (transport_.rank() != 0) return out;
  if (read.averaged)
    log::warn("{}: the ranks go on from the average of its {} ranks' weights and momentum", folder,
              manifest.ranks);
  if (drops_pending(manifest))
    log::warn("{}: a mean of changes that was to be applied after step {} is dropped", folder,
              manifest.sync.pending.due);
  if (read.new_codecs > 0)
    log::warn("{}: {} of {} tensors had another codec; residuals of the new ones start at zero", folder,
              read.new_codecs, codecs_.size());
  if (run_.exchange.collective == Collective::simulated && transport_.size() > 1)
    log::warn("{}: with exchange.collective: simulated it holds rank 0's weights, from which all ranks go on",
              folder);
  if (read.dropped_residuals)
    log::warn("{}: its residuals hold changes of weights, this run exchanges gradients: residuals are zero",
              folder);
  const char* const round2 = !read.other_round2                   ? "are cut anew"
                             : step_.residual_layout().has_round2 ? "start at zero"
                                                                  : "are dropped";
  if (read.other_blocks)
    log::warn(
        "{}: exchange.collective or exchange.ranks_per_block were others: round-1 residuals are the mean of "
        "the old ones, round-2 residuals {}",
        folder, round2);
  else if (read.other_round2 && !read.other_ranks)
    log::warn("{}: exchange.collective was another: round-2 residuals {}", folder, round2);
  if (out.other_ranks)
    log::warn("{} was written by {} ranks, this run has {}: {}running statistics are averaged", folder,
              manifest.ranks, transport_.size(),
              read.dropped_residuals ? ""
                                     : fmt::format("round-1 residuals are the mean of the old ones, round-2 "
                                                   "residuals {}, ",
                                                   round2));
  else
    log::info("resuming from {} (step {})", folder, manifest.position.step);
  return out;
}

void RunCheckpoints::check_finite(std::int64_t steps) {
  HostState host(network_);
  host.download();
  const TrainingState state{&network_.tensors(), host.parameters(), {}, host.buffers(), {}};
  check_finite_everywhere(transport_, first_non_finite(state, {}), steps);
}

void RunCheckpoints::begin(const std::string& name, const Position& position, EpochSoFar so_far, double lr,
                           double waited, const AveragedWeights* weights, bool halfway) {
  began_ = now_seconds();
  CheckpointManifest manifest;
  manifest.position = position;
  if (position.batch != 0) manifest.so_far = std::move(so_far);
  if (run_.sync.kind == SyncKind::every_step) manifest.so_far.exchanges = 0;  // known from the steps
  manifest.seed = static_cast<std::uint32_t>(run_.train.seed);
  manifest.optimizer = optimizer_of(run_);
  manifest.ranks = transport_.size();
  manifest.batch_size = run_.train.batch_size;
  manifest.batches = epoch_.batches;
  manifest.samples = epoch_.samples;
  manifest.lengths = epoch_.lengths;
  manifest.order = sample_order(run_);
  manifest.lr = lr;
  manifest.halfway = halfway;
  manifest.exchange_ranks_per_block = step_.residual_layout().ranks.size;
  manifest.sync = step_.sync_position();
  for (std::size_t t = 0; t < codecs_.size(); ++t)
    manifest.codecs.emplace_back(network_.tensors()[t].name, to_text(codecs_[t]));
  const AveragedBuffers averaged(transport_, network_);
  const double copying = now_seconds();
  snapshot_.take(position.batch != 0, weights ? weights->values() : network_.parameters(),
                 averaged.buffers());
  const double copied = now_seconds();
  writer_.begin(name, std::move(manifest), snapshot_.state(), snapshot_.averaged());
  const double begun = now_seconds();
  saving_ = {name, waited + begun - began_};
  log::debug("checkpoint {}: {:.3f} s before the copy, {:.3f} s for it, {:.3f} s until it is being written",
             name, waited + copying - began_, copied - copying, begun - copied);
}

std::optional<SavedCheckpoint> RunCheckpoints::advance() {
  if (!in_flight()) return std::nullopt;
  const double start = now_seconds();
  const std::optional<CheckpointWriter::Written> done = writer_.advance();
  saving_.waited += now_seconds() - start;
  if (!done) return std::nullopt;
  newest_ = done->folder;
  saving_.written = done->at - began_;
  return saving_;
}

std::optional<SavedCheckpoint> RunCheckpoints::finish() {
  std::optional<SavedCheckpoint> done;
  while (in_flight()) done = advance();
  return done;
}

}  // namespace lpsgd
