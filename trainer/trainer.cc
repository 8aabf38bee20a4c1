#include "trainer/trainer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <functional>
#include <utility>

#include "comm/agree.h"
#include "core/clock.h"
#include "core/log.h"
#include "data/class_names.h"
#include "nn/network.h"
#include "nn/optimizer.h"
#include "quant/policy.h"
#include "trainer/averaged_weights.h"
#include "trainer/epoch_evaluation.h"
#include "trainer/local_step.h"
#include "trainer/metrics.h"
#include "trainer/progress.h"
#include "trainer/rank_options.h"
#include "trainer/rank_trace.h"
#include "trainer/replica_check.h"
#include "trainer/run_checkpoints.h"
#include "trainer/run_folder.h"
#include "trainer/step_agreement.h"
#include "trainer/stop_signals.h"

namespace lpsgd {

namespace {

/// float32 bytes over bytes on the wire.
double compression(const std::vector<TensorInfo>& tensors, const std::vector<CodecSpec>& codecs, int ranks) {
  std::int64_t values = 0;
  std::uint64_t encoded = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    values += tensors[t].elements;
    encoded += wire_bytes(tensors[t], codecs[t], ranks);
  }
  return static_cast<double>(4 * values) / static_cast<double>(std::max<std::uint64_t>(1, encoded));
}

class RankTrainer {
 public:
  RankTrainer(const RunConfig& run, const TrainCommand& command, const TrainData& data,
              const NetworkSpec& spec, Transport& transport)
      : run_(run),
        command_(command),
        transport_(transport),
        kind_(kind_of(*data.train)),
        classes_(class_names(run.data.dataset, data.train.get())),
        trace_(command.trace),
        codecs_(assign_codecs(run.exchange.policy, spec.tensors())),
        train_loader_(batches_of(data.train, run, spec, transport, true),
                      loader_options(run, transport, true)),
        test_loader_(batches_of(data.test, run, spec, transport, false),
                     loader_options(run, transport, false)),
        network_(spec, network_options(run, transport, train_loader_.shape(), trace_.get())),
        optimizer_(run.optimizer, network_.tensors(), network_.parameters().size(), network_.stream(),
                   static_cast<std::uint32_t>(run.train.seed)),
        per_epoch_(train_loader_.batches() / run.train.micro_batches),
        contents_(epoch_contents(*data.train, per_epoch_)),
        evaluation_(transport, network_, test_loader_),
        replicas_(command.check_replicas, run.exchange.inject, transport, network_, optimizer_),
        agreement_(transport),
        sums_(run.metrics.codec_error ? codecs_.size() : 0),
        warmup_steps_(std::llround(codec_warmup(run.exchange, codecs_) * static_cast<double>(per_epoch_))),
        compression_(compression(network_.tensors(), codecs_, transport.size())) {}

  /// Before make_step(), which may take copies of the weights.
  void start_from(const Weights& weights) { set_weights(network_, weights); }

  /// Separate from the constructor because it is collective over some transports.
  void make_step() {
    step_ = lpsgd::make_step(run_, codecs_, network_, optimizer_, transport_, trace_.get());
    checkpoints_.emplace(command_.out, run_, contents_, codecs_, transport_, network_, *step_);
    checkpoints_->set_damaged(command_.damaged);
  }

  int train() {
    trace_.prepare(transport_);
    catch_signals();
    int signal = 0;
    try {
      signal = run();
    } catch (const StateError& e) {
      const std::string error = after_writing(e);
      throw SharedError(fmt::format("{}; {}", error,
                                    checkpoints_->newest()
                                        ? "the last checkpoint is " + *checkpoints_->newest()
                                        : "no checkpoint was written yet"));
    } catch (const SharedError& e) {
      throw SharedError(after_writing(e), e.exit_status());
    }
    const ScopedPhase end(transport_, Phase::end);
    trace_.write(transport_);
    return signal;
  }

 private:
  /// Returns the signal that ended the run early, or 0.
  int run() {
    if (command_.resume) resume(*command_.resume);
    collective_try(transport_, [&] {
      if (transport_.rank() == 0) metrics_.emplace(command_.out + "/metrics.jsonl", position_.epoch);
    });
    describe_run(transport_, command_.out, run_, classes_, network_.stream().device(), network_.choices(),
                 command_.command_line);
    // Epochs finished before a resume may have had another length, so only those left are counted.
    const std::int64_t left = (run_.train.epochs - position_.epoch) * per_epoch_ - position_.batch;
    const std::int64_t total = position_.step + std::max<std::int64_t>(0, left);
    if (run_.schedule.warmup_epochs > run_.train.epochs && run_.train.epochs > 0 && transport_.rank() == 0)
      log::warn("schedule.warmup_epochs: the run of {} epoch{} ends before the rate has reached schedule.lr",
                run_.train.epochs, run_.train.epochs == 1 ? "" : "s");
    if (codec_warmup(run_.exchange, codecs_) >= static_cast<double>(run_.train.epochs) &&
        run_.train.epochs > 0 && transport_.rank() == 0)
      log::warn("exchange.warmup_epochs: the run of {} epoch{} ends before the codecs begin",
                run_.train.epochs, run_.train.epochs == 1 ? "" : "s");
    const bool is_done = position_.epoch >= run_.train.epochs;
    if (command_.resume && left <= 0 && transport_.rank() == 0) {
      if (is_done)
        log::info("epoch {} of {} is done: nothing to train", position_.epoch, run_.train.epochs);
      else
        log::info("the steps of epoch {} are done: its evaluation is left", position_.epoch + 1);
    }
    const bool by_steps = command_.steps && *command_.steps <= total;
    last_ = by_steps ? *command_.steps : total;
    warn_if_apart(total);
    progress_.emplace(transport_.rank() == 0, command_.progress, position_.step, last_);
    if (by_steps && position_.step >= last_) {
      run_no_step();
      if (!command_.resume) summarize(false);
      return 0;
    }
    if (!is_done)  // a summary of before is no longer this run's
      collective_try(transport_, [&] {
        if (transport_.rank() == 0) remove_summary(command_.out);
      });
    if (const int signal = run_steps(by_steps)) return signal;
    summarize(!by_steps);
    return 0;
  }

  /// `end`: the run's last step.
  void warn_if_apart(std::int64_t end) const {
    const std::int64_t steps = end - position_.step;
    const SyncPosition at = step_->sync_position();
    if (transport_.rank() != 0 || steps <= 0 || at.ranks_per_block == transport_.size()) return;
    if (!any_exchange(run_.sync, run_.schedule, position_.step, end, position_.epoch, position_.batch,
                      per_epoch_, at) &&
        transport_.size() > 1)
      log::warn("sync: in the {} step{} up to step {} there is no synchronisation of all ranks", steps,
                steps == 1 ? "" : "s", end);
  }

  void summarize(bool finished) {
    const ScopedPhase end(transport_, Phase::end);
    std::optional<EpochRecord> rest;  // of the epoch that was not finished
    if (!finished) rest = record_of(sums_.so_far(transport_, saved_at_));
    collective_try(transport_, [&] {
      if (transport_.rank() == 0)
        write_summary(command_.out, run_, transport_.size(), metrics_lines(command_.out), rest,
                      network_.branches().times);
    });
  }

  /// Returns the signal that ended the run early, or 0.
  int run_steps(bool by_steps) {
    const ScopedPhase training(transport_, Phase::training);
    saved_at_ = now_seconds();
    sums_.start_clock(saved_at_);
    if (const int signal = ask().signal) return stop(signal);
    while (position_.epoch < run_.train.epochs) {
      train_loader_.start(position_.epoch, position_.batch * run_.train.micro_batches);
      if (run_.sync.distance && !sums_.has_distance()) step_->measure_distance();
      while (position_.batch < per_epoch_ && position_.step < last_) {
        train_step();
        check_replicas();
        if (const int signal = between_steps()) return stop(signal);
      }
      if (by_steps && position_.step == last_) {
        save(step_checkpoint_name(last_));
        finish_checkpoint();
        progress_->line(
            fmt::format("stopped after step {}; checkpoint {}", last_, step_checkpoint_name(last_)));
        return 0;
      }
      if (const int signal = finish_epoch()) return stop(signal);
      if (const int signal = between_epochs()) return stop(signal);
      sums_.start_clock(now_seconds());  // The time of a checkpoint belongs to no epoch.
    }
    if (position_.epoch == 0) save(epoch_checkpoint_name(0));
    finish_checkpoint();
    return 0;
  }

  /// For the ranks to agree on; of their clocks only rank 0's counts.
  Agreed mine() const {
    const bool overdue =
        run_.checkpoint.every_minutes > 0 && now_seconds() - saved_at_ >= 60 * run_.checkpoint.every_minutes;
    return {caught_signal(), overdue, checkpoints_->is_busy()};
  }
  Agreed ask() { return go_on(agreement_.ask(now_seconds(), mine())); }
  /// Goes on with the checkpoint in flight, if no rank has to wait for that.
  Agreed go_on(const Agreed& agreed) {
    if (!agreed.busy) report(checkpoints_->advance());
    return agreed;
  }
  void finish_checkpoint() {
    const ScopedPhase checkpoint(transport_, Phase::checkpoint);
    report(checkpoints_->finish());
  }
  void report(const std::optional<SavedCheckpoint>& saved) {
    if (saved) progress_->line(text(*saved));
  }
  /// The message of a run that ends with `error` on all ranks, after the checkpoint in flight is written.
  std::string after_writing(const SharedError& error) {
    try {
      finish_checkpoint();
    } catch (const StateError& earlier) {
      return earlier.what();
    } catch (const SharedError& other) {
      return fmt::format("{}; {}", error.what(), other.what());
    }
    return error.what();
  }

  /// Saves inside an epoch, if that is due. Returns a signal that any rank has caught, or 0.
  int between_steps() {
    const Agreed agreed = go_on(agreement_.after_step(now_seconds(), mine(), step_->is_exchanging()));
    if (agreed.signal != 0) return agreed.signal;
    const bool due = agreed.save || is_step_due(run_.checkpoint, position_.step);
    const bool halfway = !due && is_halfway_due(run_.checkpoint, position_.step);
    // After the last step of an epoch, or of the run, another checkpoint follows.
    if (!(due || halfway) || position_.batch == per_epoch_ || position_.step == last_) return 0;
    save(step_checkpoint_name(position_.step), halfway);
    return ask().signal;
  }

  /// As between_steps(), after an epoch. At the run's end a signal comes too late.
  int between_epochs() {
    Agreed agreed = ask();
    const bool due = agreed.signal != 0 || agreed.save || is_step_due(run_.checkpoint, position_.step) ||
                     is_checkpoint_due(run_.checkpoint, position_.epoch, run_.train.epochs);
    const bool halfway = !due && is_halfway_due(run_.checkpoint, position_.step);
    if (due || halfway) {
      save(epoch_checkpoint_name(position_.epoch), halfway);
      if (agreed.signal == 0) agreed = ask();
    }
    return position_.epoch < run_.train.epochs ? agreed.signal : 0;
  }

  /// Writes a checkpoint, unless the last one is of this position.
  void keep_position() {
    if (saved_ != position_ && position_.step > 0) save(step_checkpoint_name(position_.step));
    finish_checkpoint();
  }

  /// Ends the run early.
  int stop(int signal) {
    keep_position();
    progress_->line(
        fmt::format("stopped by {} after step {}; {}", signal_name(signal), position_.step,
                    checkpoints_->newest() ? "checkpoint " + *checkpoints_->newest() : "no checkpoint"));
    return signal;
  }

  void run_no_step() {
    if (command_.resume) return progress_->line(fmt::format("at step {}: nothing to do", position_.step));
    const std::string name = step_checkpoint_name(position_.step);
    sums_.start_clock(now_seconds());
    save(name);
    finish_checkpoint();
    progress_->line(fmt::format("wrote the initial weights: checkpoint {}", name));
  }

  void resume(const ResumePoint& from) {
    Resumed resumed = checkpoints_->restore(from);
    saved_ = position_ = resumed.position;
    sums_.resume(std::move(resumed.so_far), transport_.rank(), resumed.other_ranks);
    if (position_.batch > 0) lr_ = rate_at(position_.batch - 1);
  }

  /// Begins a checkpoint, once the one before is written. The ranks soon ask whether this one is.
  void save(const std::string& name, bool halfway = false) {
    const ScopedPhase checkpoint(transport_, Phase::checkpoint);
    network_.stream().synchronize();  // until then it is the steps that take their time
    step_->settle();
    const double start = now_seconds();
    step_->check_finite();
    collect();
    const double finishing = now_seconds();
    finish_checkpoint();
    const double for_the_one_before = now_seconds() - finishing;
    replicas_.before_checkpoint(position_.step, comparable());
    const AveragedWeights* const weights = average_if_apart();
    EpochSoFar so_far = sums_.so_far(transport_, start);
    checkpoints_->begin(name, position_, std::move(so_far), rate_at(position_.batch),
                        now_seconds() - start - for_the_one_before, weights, halfway);
    if (run_.checkpoint.every_steps == 1) finish_checkpoint();  // no step may be trained beside it
    agreement_.ask_soon();
    saved_ = position_;
    saved_at_ = now_seconds();
    sums_.skip(saved_at_ - start);
  }

  /// The learning rate at a batch of the running epoch. It depends on the number of finished epochs, not on
  /// their steps.
  double rate_at(std::int64_t batch) const {
    return learning_rate(run_.schedule, position_.epoch * per_epoch_ + batch, per_epoch_, run_.train.epochs);
  }

  void begin_or_end_warmup() {
    const bool warmup = position_.epoch * per_epoch_ + position_.batch < warmup_steps_;
    if (warmup == step_->is_warmup()) return;
    step_->settle();
    step_->check_finite();
    collect();
    const double start = now_seconds();
    step_->set_warmup(warmup);
    sums_.skip(now_seconds() - start);
    if (!warmup) progress_->line(fmt::format("the codecs begin with step {}", position_.step + 1));
  }

  void train_step() {
    begin_or_end_warmup();
    const double start = now_seconds();
    average_.reset();
    lr_ = rate_at(position_.batch);
    optimizer_.set_momentum(momentum_at(run_.schedule, position_.epoch, run_.optimizer.momentum));
    step_->set_interval(local_steps(run_.sync, run_.schedule, position_.epoch, position_.batch, per_epoch_));
    step_->run(train_loader_, position_.step, lr_);
    ++position_.step;
    ++position_.batch;
    log::trace("step {} is done", position_.step);
    // Measurements of a GPU are taken only where a line needs them, because the host waits for them.
    const bool due = progress_->due(position_.step);
    const double communication = due || !on_gpu() ? collect() : 0;
    progress_->step(position_.step, since_line_, lr_, now_seconds() - start, communication,
                    run_.train.batch_size, wire_ratio(), due);
    if (due) since_line_ = {};
  }

  void check_replicas() {
    const double start = now_seconds();
    replicas_.after_step(position_.step, comparable());
    sums_.skip(now_seconds() - start);
  }

  ReplicaCheck::Comparable comparable() const {
    if (!step_->is_synchronised()) return ReplicaCheck::Comparable::nothing;
    return step_->has_equal_momentum() ? ReplicaCheck::Comparable::all : ReplicaCheck::Comparable::weights;
  }

  /// The average of the ranks' weights, if they differ now, or null. Collective.
  const AveragedWeights* average_if_apart() {
    if (step_->is_synchronised()) return nullptr;
    if (!average_) {
      average_.emplace(transport_, network_);
      sums_.add_average(average_->bytes_sent());
    }
    return &*average_;
  }

  /// Adds up what the steps since the last call measured; returns their seconds of communication.
  double collect() {
    const StepMetrics metrics = step_->take(sums_.coding_errors());
    sums_.add(metrics);
    since_line_ += metrics.batches;
    sent_ += metrics.bytes_sent;
    fp32_ += metrics.bytes_fp32;
    return metrics.seconds.communication();
  }

  /// float32 bytes over bytes sent; 0 if nothing was sent. Local steps do not send in every step: then what
  /// this rank has sent counts, which is its share.
  double wire_ratio() const {
    if (transport_.size() == 1) return 0;
    if (run_.sync.kind == SyncKind::every_step) return step_->is_warmup() ? 1 : compression_;
    return sent_ == 0 ? 0 : static_cast<double>(fp32_) / transport_.size() / static_cast<double>(sent_);
  }

  bool on_gpu() const { return network_.stream().device().is_cuda(); }

  /// Returns a signal that any rank has caught during the evaluation, which is then abandoned, or 0.
  int finish_epoch() {
    const ScopedPhase evaluation(transport_, Phase::evaluation);
    step_->check_finite();
    collect();
    checkpoints_->check_finite(position_.step);
    const double start = now_seconds();
    const Evaluation found = evaluation_.run(average_if_apart(), [this](StepAgreement& ranks) {
      return go_on(ranks.after_step(now_seconds(), mine()));
    });
    if (found.signal != 0) return found.signal;
    const BatchMetrics& validation = found.validation;
    keep_steps_if_failed([&] {
      if (found.failure) std::rethrow_exception(found.failure);
      if (validation.samples > 0) return;
      log::warn("epoch {}: {}", position_.epoch + 1, text(found.bad));
      throw FileError("no sample of the test set can be read");
    });
    const bool replicas_equal = step_->replicas_equal();
    // Weights of enormous size: the next step would fail.
    if (!std::isfinite(validation.loss))
      throw NonFiniteError(fmt::format("step {}: the loss of the evaluation is not finite{}",
                                       std::max<std::int64_t>(0, position_.step - 1),
                                       replicas_equal ? "" : ", and the ranks' weights differ"));
    const Collective collective = run_.exchange.collective;
    if (!replicas_equal && collective != Collective::simulated && transport_.rank() == 0)
      log::warn("epoch {}: the ranks' weights differ{}; --check-replicas finds the step", position_.epoch + 1,
                has_owners(collective) ? ", which only an error of a machine explains" : "");
    sums_.add_evaluation(now_seconds() - start, found.bad);
    if (sums_.bad_samples().count > 0)
      log::warn("epoch {}: {}", position_.epoch + 1, text(sums_.bad_samples()));

    const EpochSoFar whole = sums_.so_far(transport_, now_seconds());
    ++position_.epoch;
    position_.batch = 0;
    EpochRecord record = record_of(whole);
    record.validation = validation;
    record.replicas_equal = replicas_equal;
    record.coding = sums_.coding(transport_, network_.tensors());
    collective_try(transport_, [&] {
      if (metrics_) metrics_->append(record);
    });
    progress_->line(text(record, run_.train.epochs));
    sums_.clear();
    return 0;
  }

  /// Throws what `check`, of the evaluation, throws on any rank. A checkpoint then keeps the epoch's steps.
  void keep_steps_if_failed(const std::function<void()>& check) {
    try {
      collective_try(transport_, check);
    } catch (const SharedError& e) {
      keep_position();
      throw SharedError(fmt::format("{}; epoch {} is not evaluated, its steps are in checkpoint {}", e.what(),
                                    position_.epoch + 1, *checkpoints_->newest()),
                        e.exit_status());
    }
  }

  /// What the steps of an epoch have measured.
  EpochRecord record_of(const EpochSoFar& sums) const {
    EpochRecord record;
    record.epoch = position_.epoch;
    record.step = position_.step;
    record.lr = lr_;
    record.kind = kind_;
    record.train = sum(sums.train);
    record.sequences = sums.sequences;
    record.seconds = sums.seconds;
    record.bytes_sent = sums.bytes_sent;
    record.bytes_fp32 = sums.bytes_fp32;
    if (run_.exchange.collective == Collective::hierarchical) record.bytes_between = sums.bytes_between;
    record.bad_samples = sums.bad_samples;
    record.local_steps = run_.sync.kind != SyncKind::every_step;
    record.synchronisations = sums.exchanges;
    record.distance = sums.distance;
    record.bytes_average = sums.bytes_average;
    record.simulated = run_.exchange.collective == Collective::simulated;
    return record;
  }

  const RunConfig& run_;
  const TrainCommand& command_;
  Transport& transport_;
  const DataKind kind_;
  const std::vector<std::string> classes_;  // their names
  const RankTrace trace_;
  const std::vector<CodecSpec> codecs_;
  Loader train_loader_, test_loader_;
  Network network_;
  Optimizer optimizer_;
  const std::int64_t per_epoch_;  // steps
  const EpochContents contents_;
  EpochEvaluation evaluation_;
  std::unique_ptr<SynchronousStep> step_;
  std::optional<RunCheckpoints> checkpoints_;
  ReplicaCheck replicas_;
  std::optional<MetricsFile> metrics_;  // rank 0's
  std::optional<Progress> progress_;

  StepAgreement agreement_;
  Position position_;
  std::optional<Position> saved_;  // of the newest checkpoint of this run
  double saved_at_ = 0;            // or when the run started
  std::int64_t last_ = 0;          // step of this command
  EpochSums sums_;
  std::optional<AveragedWeights> average_;  // since the last step
  BatchMetrics since_line_;                 // since the last progress line
  double lr_ = 0;                           // of the last step
  std::uint64_t sent_ = 0, fp32_ = 0;       // bytes of this command's steps: by this rank; by all as float32
  const std::int64_t warmup_steps_;         // of the codecs
  const double compression_;
};

}  // namespace

int train_rank(const RunConfig& run, const TrainCommand& command, const TrainData& data,
               const NetworkSpec& spec, Transport& transport) {
  std::optional<RankTrainer> trainer;
  collective_try(transport, [&] { trainer.emplace(run, command, data, spec, transport); });
  if (command.init != nullptr && !command.resume)
    collective_try(transport, [&] { trainer->start_from(*command.init); });
  collective_try(transport, [&] { trainer->make_step(); });
  try {
    return trainer->train();
  } catch (const SharedError&) {
    // Work that a rank has in flight needs the other ranks: none ends before all are done.
    trainer.reset();
    const ScopedPhase end(transport, Phase::end);
    transport.barrier();
    throw;
  } catch (const StalledError& e) {  // nothing is destroyed: that would wait for the thread that hangs
    print_error(fmt::format("rank {}: {}", transport.rank(), e.what()));
    transport.abort(1);
    std::fflush(stdout);
    ::_exit(1);
  } catch (const std::exception& e) {
    // A thread that hangs must not keep the message back.
    const ScopedProcessEnd end(8, fmt::format("rank {}: {}", transport.rank(), e.what()));
    trainer.reset();
    throw;
  }
}

}  // namespace lpsgd
