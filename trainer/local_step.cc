#include "trainer/local_step.h"

#include <algorithm>
#include <utility>

#include "comm/agree.h"
#include "core/buffer.h"
#include "core/log.h"
#include "trainer/averaged_weights.h"
#include "trainer/step_part.h"

namespace lpsgd {

namespace {

OuterOptions outer_options(const SyncOptions& sync) {
  if (sync.kind != SyncKind::block_momentum) return {};
  return {sync.momentum, sync.rate, sync.nesterov};
}

/// Synchronisations in front of the captured ones, in which libraries initialise themselves.
constexpr int plain_synchronisations = 3;

/// Of captured synchronisations, whose first part writes what is exchanged.
void add(const PartSeconds& captured, Seconds& seconds) {
  seconds.exposed_comm += captured.backward + captured.exposed;
  seconds.update += captured.update;
}

/// What was asked for, and will not be. `in_block`: ranks of a block of hierarchical_local_sgd.
void warn_if_pointless(const RunConfig& run, int in_block, int ranks) {
  const std::int64_t epochs = run.train.epochs;
  if (run.sync.kind == SyncKind::post_local_sgd && epochs > 0 &&
      local_steps(run.sync, run.schedule, epochs - 1, 0, 1) < run.sync.steps)
    log::warn("sync.from: the run of {} epoch{} ends before its steps are local", epochs,
              epochs == 1 ? "" : "s");
  if (in_block > 0 && run.sync.block_steps == 1)
    log::warn("sync.block_steps: with 1 each synchronisation is of all ranks, as with local_sgd");
  else if (in_block == ranks && ranks > 1)
    log::warn(
        "sync.ranks_per_block: all {} ranks are one block, so each synchronisation is of all of them; those "
        "within "
        "the block only have residuals of their own",
        ranks);
}

/// Of synchronisations within the block `ranks`, which the exchange's blocks divide or hold.
ExchangeOptions block_options(const RunConfig& run, Transport& all, Transport& block, StreamView compute,
                              const Block& ranks, Trace* trace) {
  RunConfig within = run;
  if (run.exchange.collective == Collective::hierarchical) {
    const int exchange =
        block_of(all, static_cast<int>(run.exchange.ranks_per_block), "exchange.ranks_per_block").size;
    if (exchange % ranks.size != 0 && ranks.size % exchange != 0)
      throw ConfigError(
          fmt::format("sync.ranks_per_block: blocks of {} ranks lie across those of "
                      "exchange.ranks_per_block, {} ranks; one "
                      "number must divide the other",
                      ranks.size, exchange));
    within.exchange.ranks_per_block = exchange;
    if (exchange >= ranks.size) within.exchange.collective = Collective::reduce_broadcast;
  }
  ExchangeOptions options = exchange_options(within, block, compute, trace);
  options.first_rank = ranks.first;
  return options;
}

/// What a step makes of a residual of gradients, which then holds a change of weights. Steps of LARS, of Adam
/// and with a limit of the norm are not in proportion to the gradient.
float change_of_residual(const OptimizerOptions& optimizer, double lr) {
  const bool proportional = optimizer.kind == OptimizerKind::sgd && optimizer.clip_norm == 0;
  return proportional ? static_cast<float>(lr) : 0.0f;
}

std::vector<std::size_t> ends(const std::vector<Fragment>& fragments) {
  std::vector<std::size_t> out;
  for (const Fragment& fragment : fragments) out.push_back(fragment.last);
  return out;
}

}  // namespace

LocalStep::LocalStep(const RunConfig& run, const std::vector<CodecSpec>& codecs, Network& network,
                     Optimizer& optimizer, Transport& transport, Trace* trace,
                     std::vector<Fragment> fragments)
    : SynchronousStep(run, codecs, network, optimizer, transport, trace, ends(fragments), run.sync.delay > 0),
      options_(run.sync),
      fragments_(std::move(fragments)),
      interval_(run.sync.steps) {
  collective_try(transport, [&] {
    outer_ = make_outer_step(outer_options(run.sync), network.parameters().size(), network.stream());
  });
  if (run.sync.kind == SyncKind::hierarchical_local_sgd)
    block_.emplace(run, codecs, network, transport, trace);
  if (transport.rank() == 0) warn_if_pointless(run, block_ ? block_->ranks.size : 0, transport.size());
  if (run.sync.delay == 0) return;
  zero_bytes(changes_.data(), changes_.view().size_bytes(), network.stream());
  if (!transport.ordered()) transport.collectives().before = [this] { join(); };
}

LocalStep::~LocalStep() {
  if (options_.delay > 0 && !transport_.ordered()) transport_.collectives().before = nullptr;
}

LocalStep::BlockLevel::BlockLevel(const RunConfig& run, const std::vector<CodecSpec>& codecs,
                                  Network& network, Transport& all, Trace* trace)
    : ranks(block_of(all, static_cast<int>(run.sync.ranks_per_block), "sync.ranks_per_block")),
      transport(make_block_transport(all, ranks.first, ranks.size)),
      exchange(*transport, network, codecs, network.gradients(),
               block_options(run, all, *transport, network.stream(), ranks, trace)),
      outer(make_outer_step({}, network.parameters().size(), network.stream())) {}

void LocalStep::set_warmup(bool on) {
  captured_synchronisations_.graphs.restart();
  behind_ = 0;
  SynchronousStep::set_warmup(on);
  if (!block_) return;
  block_->captured.graphs.restart();
  block_->exchange.set_warmup(on);
}

void LocalStep::run(Loader& loader, std::int64_t number, double lr) {
  const bool differences = options_.always_differences();
  if (!at_.started && interval_ == 1 && !differences) return SynchronousStep::run(loader, number, lr);
  if (!at_.started) start(lr);
  StepTimes at{};
  optimizer_.set_noise_rank(transport_.rank());
  optimizer_.set_rate(lr, number);
  local(loader, number, at);
  ++at_.steps;
  if (options_.streams())
    stream(number, at);
  else if (at_.steps >= interval_)
    synchronise(number, at);
  end_step(number, at);
}

/// From here on residuals hold changes of weights.
void LocalStep::start(double lr) {
  outer_->start(network_.parameters());
  if (block_) block_->outer->start(network_.parameters());
  at_ = {.started = true, .steps = 0};
  if (has_run_) SynchronousStep::check_finite();
  const float factor = change_of_residual(run_.optimizer, lr);
  ExchangeState residuals = exchange_.coded().state();
  for (auto* round : {&residuals.round1, &residuals.round2})
    for (std::vector<float>& tensor : *round)
      for (float& value : tensor) value *= factor;
  exchange_.coded().set_state(residuals);
}

void LocalStep::local(Loader& loader, std::int64_t number, StepTimes& at) {
  forward(loader, number, at);
  check_last_exchange();
  const auto can = [this] { return run_.train.cuda_graphs && network_.is_backward_captured(); };
  if (on_gpu_ && local_steps_.wanted(transport_, number, network_.unsettled_steps(), can, network_.stream(),
                                     "backward and update of local steps")) {
    local_steps_.run(static_cast<std::size_t>(number),
                     {[this] { network_.backward({}); }, [] {}, [this] { update(); }, [] {}});
    at.backward = at.exposed = at.forward;
    at.update = now_seconds();
    return;
  }
  at.exposed = at.backward = part("backward", times_.backward, [&] { network_.backward({}); });
  at.update = update_part([&] { update(); });
}

void LocalStep::synchronise(std::int64_t number, StepTimes& at) {
  // Within the block, unless it is time for all ranks.
  const bool within = block_ && ++at_.rounds < options_.block_steps;
  if (!within && std::exchange(measure_, false)) take_distance();
  Exchange& exchange = exchange_of(within);
  Synchronisations& captured = within ? block_->captured : captured_synchronisations_;
  const auto can = [&] { return run_.train.cuda_graphs && exchange.can_capture(); };
  const bool is_captured =
      transport_.ordered() &&
      captured.graphs.wanted(transport_, number, plain_synchronisations, can, network_.stream(),
                             within ? "synchronisations within blocks" : "synchronisations of all ranks");
  exchange.begin(static_cast<std::uint32_t>(number));
  ++exchanges_;
  has_run_ |= !within;
  if (within) ++block_->exchanges;
  if (is_captured) {
    at.sending = now_seconds();
    captured.graphs.run(captured.count, {[this, within] {
                                           difference(within);
                                           submit_changes(within);
                                         },
                                         [this, within] { exchange_of(within).finish(); },
                                         [this, within] { apply_mean(within); },
                                         [this, within] { exchange_of(within).launched(); }});
    if (!within) check_exchange_before();
    at.exposed = at.update = now_seconds();
  } else {
    at.sending = update_part([&] { difference(within); });
    at.exposed = part("exposed communication", times_.exposed, [&] {
      submit_changes(within);
      exchange.finish();
      if (!within) check_exchange_before();
    });
    at.update = update_part([&] { apply_mean(within); });
  }
  ++captured.count;
  at_.steps = 0;
  if (!within) {
    at_.rounds = 0;
    at_.streams = false;
  }
}

void LocalStep::stream(std::int64_t number, StepTimes& at) {
  if (at_.has_pending() && number >= at_.pending.due) arrive(at);
  const std::int64_t steps = options_.steps_per_fragment();
  if (at_.steps % steps != 0 && at_.steps < options_.steps) return;
  if (at_.has_pending()) arrive(at);  // of a run that had other fragments or another delay
  const auto turn = static_cast<std::size_t>(at_.steps / steps);
  const std::size_t index = std::min(turn, fragments_.size()) - 1;
  if (std::exchange(measure_, false)) take_distance();
  send(fragments_[index], index, number, at);
  if (at_.steps >= options_.steps) at_.steps = 0;
  if (options_.delay == 0) arrive(at);
}

void LocalStep::send(const Fragment& fragment, std::size_t index, std::int64_t number, StepTimes& at) {
  exchange_->begin(static_cast<std::uint32_t>(number), index);
  ++exchanges_;
  has_run_ = unchecked_ = true;
  at_.pending = {static_cast<std::int64_t>(fragment.first), static_cast<std::int64_t>(fragment.last),
                 number + options_.delay};
  at.sending = update_part([&] {
    outer_->difference(network_.parameters().subspan(fragment.at, fragment.values),
                       changes().subspan(fragment.at, fragment.values), fragment.at);
  });
  at.exposed = at.update = part("exposed communication", times_.exposed, [&] {
    for (const std::size_t tensor : network_.announce_order())
      if (fragment.first <= tensor && tensor < fragment.last) exchange_->submit(tensor);
    exchange_->release();
  });
}

/// The pending mean is due.
void LocalStep::arrive(StepTimes& at) {
  if (options_.delay > 0) at.sending = at.update;
  join();
  check_arrived();
  at.exposed = now_seconds();
  const Fragment fragment =
      fragment_of(network_.tensors(), static_cast<std::size_t>(at_.pending.first),
                  static_cast<std::size_t>(at_.pending.last), network_.parameters().size());
  at.update = update_part([&] {
    outer_->apply(network_.parameters().subspan(fragment.at, fragment.values),
                  changes().subspan(fragment.at, fragment.values), fragment.at,
                  options_.delay > 0 ? options_.mix : 0);
    if (options_.reset_momentum) reset_momentum(fragment.at, fragment.values);
  });
  at_.pending = {};
}

/// Waits for the exchange that is on its way.
void LocalStep::join() {
  if (!exchange_->is_open()) return;
  part("exposed communication", times_.exposed, [&] { exchange_->finish(); });
}

void LocalStep::check_arrived() {
  if (std::exchange(unchecked_, false)) check_exchange_before();
}

void LocalStep::difference(bool within) {
  (within ? *block_->outer : *outer_).difference(network_.parameters(), network_.gradients());
}

void LocalStep::submit_changes(bool within) {
  for (const std::size_t tensor : network_.announce_order()) exchange_of(within).submit(tensor);
}

/// What is not finite within a block stays so, and all ranks find it together.
void LocalStep::apply_mean(bool within) {
  (within ? *block_->outer : *outer_).apply(network_.parameters(), network_.gradients());
  if (block_ && !within) block_->outer->start(network_.parameters());
  if (options_.reset_momentum) reset_momentum(0, network_.parameters().size());
}

void LocalStep::reset_momentum(std::size_t at, std::size_t values) {
  for (const std::span<float> arena : {optimizer_.momentum(), optimizer_.second_moment()})
    if (!arena.empty()) zero_bytes(arena.data() + at, values * sizeof(float), network_.stream());
}

/// The exchange of this step on the CPU; on a GPU the one before, unless its flags were read already.
void LocalStep::check_exchange_before() {
  if (!on_gpu_ || behind_ > 0) check(on_gpu_, "change");
  behind_ = on_gpu_ ? 1 : 0;
}

/// On a GPU, in the third step after an exchange: its forward pass has just waited for the upload of labels
/// to the first one, which the device did after the exchange. So the host does not wait here.
void LocalStep::check_last_exchange() {
  constexpr int finished = 3;
  if (behind_ == 0 || exchange_->is_open() || behind_++ < finished) return;
  behind_ = 0;
  check(false, "change");
}

/// From the exact mean, because the one that ranks apply has the codec's error in it. Waits for a GPU.
void LocalStep::take_distance() {
  const AveragedWeights average(transport_, network_);
  Buffer<float> start(network_.parameters().size());
  copy_values(start.view(), outer_->synchronised(), network_.stream());
  network_.stream().synchronize();
  distance_ = average.deviation_from(start.view());
  bytes_average_ += average.bytes_sent();
}

StepMetrics LocalStep::measured(std::span<CodingError> errors) {
  StepMetrics out = SynchronousStep::measured(errors);
  const PartSeconds captured = local_steps_.take();
  out.seconds.backward += captured.backward;
  out.seconds.update += captured.update;
  add(captured_synchronisations_.graphs.take(), out.seconds);
  out.distance = std::exchange(distance_, {});
  out.bytes_average = std::exchange(bytes_average_, 0);
  if (!block_) return out;
  add(block_->captured.graphs.take(), out.seconds);
  const ExchangeStats stats = block_->exchange->take_stats();
  out.seconds.encode += stats.encode;
  out.seconds.transfer += stats.transfer;
  out.seconds.decode += stats.decode;
  out.seconds.exposed_codec += stats.exposed_codec;
  out.bytes_sent += stats.bytes_sent;
  if (block_->exchange.coded().blocks().size > 1) out.bytes_between += stats.bytes_between;
  out.block_exchanges = std::exchange(block_->exchanges, 0);
  if (!errors.empty()) block_->exchange.take_errors(errors);
  return out;
}

void LocalStep::check_finite() {
  join();
  check_arrived();
  if (on_gpu_ && has_run_) check(false, at_.started ? "change" : "gradient");
}

bool LocalStep::replicas_equal() {
  join();
  struct Sums {
    std::uint64_t all, block, pending;
  };
  const bool block_agreed = block_ && at_.started && at_.steps == 0;
  const std::span<const float> agreed = is_synchronised() ? network_.parameters() : outer_->synchronised();
  Sums mine{checksum_of(agreed) + frozen_checksum(), 0, checksum_of(changes_.view())};
  if (block_) mine.block = checksum_of(block_agreed ? network_.parameters() : block_->outer->synchronised());
  const std::vector<Sums> sums = transport_.all_gather(mine);
  const auto size = static_cast<std::size_t>(block_ ? block_->ranks.size : 1);
  for (std::size_t r = 0; r < sums.size(); ++r)
    if (sums[r].all != sums[0].all || sums[r].block != sums[r / size * size].block ||
        sums[r].pending != sums[0].pending)
      return false;
  return true;
}

SyncPosition LocalStep::sync_position() const {
  SyncPosition at = at_;
  if (block_) at.ranks_per_block = block_->ranks.size;
  at.streams = at.started && (at.streams || options_.streams());
  return at;
}

void LocalStep::set_sync_position(const SyncPosition& at) {
  at_ = at;
  if (options_.delay == 0 || at.pending.last > static_cast<std::int64_t>(network_.tensors().size()))
    at_.pending = {};
}

std::vector<NamedArena> LocalStep::arenas() {
  using Otherwise = NamedArena::Otherwise;
  std::vector<NamedArena> out = optimizer_.arenas();
  for (NamedArena& arena : out) arena.own = true;
  out.push_back({"weights", network_.parameters(), true, Otherwise::average});
  out.push_back({"synchronised", outer_->synchronised(), false, Otherwise::average});
  if (block_) out.push_back({"block_synchronised", block_->outer->synchronised(), true, Otherwise::average});
  if (!outer_->momentum().empty())
    out.push_back({"outer_momentum", outer_->momentum(), false, Otherwise::zeros});
  if (options_.delay > 0) out.push_back({"pending", changes_.view(), false, Otherwise::zeros});
  return out;
}

std::unique_ptr<SynchronousStep> make_step(const RunConfig& run, const std::vector<CodecSpec>& codecs,
                                           Network& network, Optimizer& optimizer, Transport& transport,
                                           Trace* trace) {
  if (run.sync.is_local())
    return std::make_unique<LocalStep>(run, codecs, network, optimizer, transport, trace);
  return std::make_unique<SynchronousStep>(run, codecs, network, optimizer, transport, trace);
}

}  // namespace lpsgd
