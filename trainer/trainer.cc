#include "trainer/trainer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "comm/agree.h"
#include "comm/exchange.h"
#include "core/checksum.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"
#include "core/trace.h"
#include "data/loader.h"
#include "nn/network.h"
#include "nn/optimizer.h"
#include "quant/policy.h"
#include "trainer/captured_step.h"
#include "trainer/checkpoint.h"
#include "trainer/evaluate.h"
#include "trainer/host_state.h"
#include "trainer/metrics.h"
#include "trainer/progress.h"
#include "trainer/run_folder.h"
#include "trainer/step_times.h"

namespace lpsgd {

namespace {

int threads_per_rank(const RunConfig& run, const Transport& transport) {
  if (run.train.threads > 0) return static_cast<int>(run.train.threads);
  return std::max(1, usable_cores() / transport.local_size());
}

LoaderOptions loader_options(const RunConfig& run, const Transport& transport, bool training) {
  LoaderOptions o;
  o.global_batch = run.train.batch_size;
  o.rank = transport.rank();
  o.ranks = transport.size();
  o.seed = static_cast<std::uint32_t>(run.train.seed);
  o.training = training;
  return o;
}

ExchangeOptions exchange_options(const RunConfig& run, StreamView compute, Trace* trace) {
  ExchangeOptions o;
  o.device = compute.device();
  o.compute = compute;
  o.collective = run.exchange.collective;
  o.seed = static_cast<std::uint32_t>(run.train.seed);
  o.overlap = run.exchange.overlap;
  o.measure_error = run.metrics.codec_error;
  o.trace = trace;
  if (run.exchange.device_pointers != DevicePointers::automatic)
    o.device_pointers = run.exchange.device_pointers == DevicePointers::yes;
  return o;
}

class RankTrainer {
 public:
  RankTrainer(const RunConfig& run, const TrainCommand& command, const TrainData& data,
              const NetworkSpec& spec, Transport& transport)
      : run_(run),
        command_(command),
        transport_(transport),
        trace_(command.trace.empty() ? nullptr : std::make_unique<Trace>()),
        step_trace_(trace_ ? std::make_unique<StepTrace>(*trace_) : nullptr),
        codecs_(assign_codecs(run.exchange.policy, spec.tensors())),
        network_(spec, {.batch = run.train.batch_size / transport.size(),
                        .first = run.train.batch_size / transport.size() * transport.rank(),
                        .seed = static_cast<std::uint32_t>(run.train.seed),
                        .threads = threads_per_rank(run, transport),
                        .compute = run.train.compute,
                        .device = device_of(run.train, transport.local_rank()),
                        .deterministic = run.train.deterministic,
                        .cuda_graphs = run.train.cuda_graphs}),
        optimizer_(run.optimizer, network_.tensors(), network_.parameters().size(), network_.stream()),
        times_(network_.stream()),
        train_loader_(data.train, run.data, loader_options(run, transport, true)),
        test_loader_(data.test, run.data, loader_options(run, transport, false)),
        checkpoints_(command.out),
        errors_(run.metrics.codec_error ? codecs_.size() : 0) {
    std::uint64_t encoded = 0;
    for (std::size_t t = 0; t < codecs_.size(); ++t)
      encoded += wire_bytes(network_.tensors()[t], codecs_[t], transport.size());
    parameters_ = spec.parameters();
    compression_ =
        static_cast<double>(4 * parameters_) / static_cast<double>(std::max<std::uint64_t>(1, encoded));
  }

  /// Apart from the rest, because over some transports it is collective.
  void make_exchange() {
    exchange_.emplace(transport_, network_.tensors(), codecs_, network_.gradients(),
                      network_.announce_order(), exchange_options(run_, network_.stream(), trace_.get()));
    network_.announce_behind(exchange_->milestones());
  }

  void run() {
    const std::int64_t per_epoch = train_loader_.batches();
    const bool resumed = command_.resume && restore();
    // Epochs done before a resume may have had another length.
    const std::int64_t left = (run_.train.epochs - position_.epoch) * per_epoch - position_.batch;
    const std::int64_t total = position_.step + std::max<std::int64_t>(0, left);
    const std::int64_t last = command_.steps ? std::min(*command_.steps, total) : total;
    if (position_.batch > 0)
      rate_ = learning_rate(run_.schedule, position_.epoch * per_epoch + position_.batch - 1, per_epoch);
    describe_run(transport_, command_.out, run_, network_.stream().device(), network_.choices(),
                 command_.command_line);
    std::unique_ptr<MetricsFile> metrics;
    collective_try(transport_, [&] {
      if (transport_.rank() == 0)
        metrics = std::make_unique<MetricsFile>(command_.out + "/metrics.jsonl", position_.epoch);
    });
    Progress progress(transport_.rank() == 0, command_.progress, position_.step, last);
    const bool by_steps = command_.steps && *command_.steps <= total;
    if (by_steps && position_.step >= last) {
      if (!resumed) save(step_checkpoint_name(position_.step));
      progress.line(resumed ? fmt::format("at step {}: nothing to do", position_.step)
                            : fmt::format("wrote the initial weights: checkpoint {}",
                                          step_checkpoint_name(position_.step)));
      return;
    }
    EpochRecord newest;
    epoch_started_ = now_seconds();
    while (position_.epoch < run_.train.epochs) {
      train_loader_.start(position_.epoch, position_.batch);
      while (position_.batch < per_epoch && position_.step < last) train_step(progress);
      if (by_steps && position_.step == last) {
        save(step_checkpoint_name(position_.step));
        progress.line(fmt::format("stopped after step {}; checkpoint {}", position_.step,
                                  step_checkpoint_name(position_.step)));
        return;
      }
      newest = finish_epoch(metrics.get(), progress);
      const std::int64_t every = run_.checkpoint.every_epochs;
      if (position_.epoch == run_.train.epochs || (every > 0 && position_.epoch % every == 0))
        save(epoch_checkpoint_name(position_.epoch));
      epoch_started_ = now_seconds();  // checkpoints are no epoch's
    }
    if (position_.epoch == 0) save(epoch_checkpoint_name(0));
    collective_try(transport_, [&] {
      if (transport_.rank() == 0)
        write_summary(command_.out, run_, transport_.size(), metrics_lines(command_.out));
    });
  }

  /// Before the first step: hours later is late to find that there is no place for the trace.
  void prepare_trace() {
    if (!trace_) return;
    collective_try(transport_, [&] {
      std::error_code error;
      std::filesystem::create_directories(command_.trace, error);
      if (error)
        throw FileError(fmt::format("--trace {}: cannot be made: {}", command_.trace, error.message()));
      if (::access(command_.trace.c_str(), W_OK | X_OK) != 0)
        throw FileError(fmt::format("--trace {}: cannot be written to: {}", command_.trace,
                                    std::error_code(errno, std::generic_category()).message()));
    });
  }

  void write_trace() {
    if (!trace_) return;
    collective_try(transport_, [&] {
      trace_->write(fmt::format("{}/rank{:04}.json", command_.trace, transport_.rank()), transport_.rank(),
                    transport_.size());
    });
    if (transport_.rank() == 0 && trace_->dropped() > 0)
      log::warn("the trace was full: {} spans were left out; --steps makes it shorter", trace_->dropped());
  }

 private:
  bool restore() {
    std::optional<std::string> folder;
    bool redistributed = false;
    collective_try(transport_, [&] {
      folder = checkpoints_.newest();
      if (!folder) return;
      const CheckpointMeta meta = read_manifest(*folder);
      if (meta.seed != static_cast<std::uint32_t>(run_.train.seed))
        throw FileError(fmt::format("{}: was written with seed {}, the configuration says {}", *folder,
                                    meta.seed, run_.train.seed));
      if (meta.position.batch != 0 &&
          (meta.batch_size != run_.train.batch_size || meta.batches != train_loader_.batches()))
        throw FileError(fmt::format(
            "{}: stands inside an epoch of {} batches of {} samples, the configuration "
            "makes it {} of {}",
            *folder, meta.batches, meta.batch_size, train_loader_.batches(), run_.train.batch_size));
      HostState host(network_, &optimizer_);
      TrainingState state = training_state(host);
      redistributed = read_checkpoint(*folder, meta, transport_.rank(), transport_.size(), codecs_, state);
      host.upload();
      exchange_->set_state(state.residuals);
      position_ = meta.position;
      carried_ = meta.so_far;
      // Each rank goes on with its own sum, so that the epoch's is the same as if it had never stopped.
      const auto rank = static_cast<std::size_t>(transport_.rank());
      if (redistributed)
        train_ = rank == 0 ? sum(carried_.train) : BatchMetrics{};
      else if (rank < carried_.train.size())
        train_ = carried_.train[rank];
      old_ranks_ = meta.ranks;
    });
    if (transport_.rank() != 0) return folder.has_value();
    if (!folder) return false;
    if (redistributed)
      log::warn(
          "{} was written by {} ranks, this run has {}: round-1 residuals are the mean of the old ones, "
          "round-2 residuals are cut "
          "anew, running statistics are averaged",
          *folder, old_ranks_, transport_.size());
    else
      log::info("resuming from {} (step {})", *folder, position_.step);
    return true;
  }

  TrainingState training_state(const HostState& host) {
    return {&network_.tensors(), host.parameters(), host.momentum(), host.buffers(), exchange_->state()};
  }

  /// Of the next step: by epochs done, however many steps those had.
  double rate() const {
    const std::int64_t per_epoch = train_loader_.batches();
    return learning_rate(run_.schedule, position_.epoch * per_epoch + position_.batch, per_epoch);
  }

  void train_step(Progress& progress) {
    const double lr = rate_ = rate();
    const double t0 = now_seconds();
    Batch batch;
    part("data", times_.data, [&] { batch = train_loader_.next(); });
    const double t1 = now_seconds();
    part("forward", times_.forward, [&] {
      network_.forward_train({batch.images, batch.labels}, position_.step);
    });
    const double t2 = now_seconds();
    const bool is_captured = is_one_launch();
    exchange_->begin(static_cast<std::uint32_t>(position_.step));
    optimizer_.set_rate(lr);
    double t3 = t2, t4 = t2;
    if (is_captured) {
      captured_.run(static_cast<std::size_t>(position_.step),
                    {[this] { backward(); }, [this] { exchange_->finish(); }, [this] { update(); },
                     [this] { exchange_->launched(); }});
      stop_if_not_finite(true);
    } else {
      part("backward", times_.backward, [&] { backward(); });
      t3 = now_seconds();
      part("exposed communication", times_.exposed, [&] {
        exchange_->finish();
        stop_if_not_finite(on_gpu());  // one step late there: its flags are on their way
      });
      t4 = now_seconds();
      part("update", times_.update, [&] { update(); });
    }
    const double t5 = now_seconds();

    if (step_trace_) step_trace_->add(position_.step, {t0, t1, t2, t3, t4, t5});

    if (!errors_.empty()) ++measured_steps_;
    bytes_fp32_ +=
        2 * static_cast<std::uint64_t>(transport_.size() - 1) * 4 * static_cast<std::uint64_t>(parameters_);
    ++position_.step;
    ++position_.batch;

    // A GPU is asked only where a line needs it: the host would wait for it.
    const bool due = progress.due(position_.step);
    const double before = seconds_.communication();
    if (due || !on_gpu()) collect();
    progress.step(position_.step, line_.loss / static_cast<double>(line_.samples), lr, now_seconds() - t0,
                  seconds_.communication() - before, run_.train.batch_size, compression_, due);
    if (due) line_ = {};
  }

  void backward() {
    // A GPU launches a pass that nobody listens to in one launch, another in one for each milestone.
    const bool alone = transport_.size() == 1 && on_gpu();
    if (run_.exchange.overlap && !alone)
      return network_.backward([this](std::size_t tensor) { exchange_->submit(tensor); });
    network_.backward({});
    for (const std::size_t tensor : network_.announce_order()) exchange_->submit(tensor);
  }

  void update() { optimizer_.step(network_.parameters(), network_.gradients()); }

  /// Whether backward, exchange and update are one launch in the step that comes. Collective.
  bool is_one_launch() {
    if (!transport_.ordered()) return false;
    const auto can = [this] {
      return run_.train.cuda_graphs && exchange_->can_capture() && network_.is_backward_captured();
    };
    return captured_.wanted(transport_, position_.step, can, network_.stream());
  }

  /// Adds up what the steps since the last call have measured. Waits for a GPU.
  void collect() {
    const BatchMetrics m = network_.take_metrics();
    for (BatchMetrics* to : {&train_, &line_}) {
      to->loss += m.loss;
      to->top1 += m.top1;
      to->top5 += m.top5;
      to->samples += m.samples;
    }
    seconds_.data += times_.data.take();
    seconds_.forward += times_.forward.take();
    seconds_.backward += times_.backward.take();
    seconds_.update += times_.update.take();
    const PartSeconds captured = captured_.take();
    seconds_.backward += captured.backward;
    seconds_.update += captured.update;
    const double exposed = times_.exposed.take() + captured.exposed;
    const ExchangeStats stats = exchange_->take_stats();
    seconds_.exposed_comm += exposed;
    seconds_.exposed_codec += std::min(stats.exposed_codec, exposed);
    seconds_.encode += stats.encode;
    seconds_.transfer += stats.transfer;
    seconds_.decode += stats.decode;
    bytes_sent_ += stats.bytes_sent;
    if (!errors_.empty()) exchange_->take_errors(errors_);
  }

  bool on_gpu() const { return network_.stream().device().is_cuda(); }

  /// `before`: looks at the step before the last, for which nothing waits.
  void stop_if_not_finite(bool before) {
    const NonFinite bad = exchange_->check_finite(before);
    if (bad.tensor < 0) return;
    const std::string& name = network_.tensors()[static_cast<std::size_t>(bad.tensor)].name;
    const std::string where = bad.rank >= 0 ? fmt::format("the gradient of '{}' on rank {}", name, bad.rank)
                                            : fmt::format("the mean gradient of '{}'", name);
    throw SharedError(
        fmt::format("step {}: {} holds a NaN or an infinity; the last checkpoint stands", bad.step, where));
  }

  EpochRecord finish_epoch(MetricsFile* metrics, Progress& progress) {
    if (on_gpu()) stop_if_not_finite(false);
    collect();
    const double start = now_seconds();
    const AveragedBuffers averaged(transport_, network_);
    const BatchMetrics validation = evaluate(network_, test_loader_, averaged.buffers());
    EpochRecord record;
    record.validation = sum(of_all_ranks(transport_, validation));
    record.replicas_compared = run_.exchange.collective != Collective::simulated;
    HostState host(network_, nullptr);
    host.download();
    record.replicas_equal = transport_.all_equal(checksum64(std::as_bytes(host.parameters())));
    seconds_.eval += now_seconds() - start;

    const EpochSoFar whole = epoch_so_far();
    ++position_.epoch;
    position_.batch = 0;
    record.epoch = position_.epoch;
    record.step = position_.step;
    record.lr = rate_;
    record.train = sum(whole.train);
    record.seconds = whole.seconds;
    record.bytes_sent = whole.bytes_sent;
    record.bytes_fp32 = whole.bytes_fp32;
    record.simulated = run_.exchange.collective == Collective::simulated;
    record.coding = coding_of_epoch();
    collective_try(transport_, [&] {
      if (metrics) metrics->append(record);
    });
    const auto percent = [](std::int64_t hits, std::int64_t n) {
      return 100.0 * static_cast<double>(hits) / static_cast<double>(std::max<std::int64_t>(1, n));
    };
    progress.line(fmt::format(
        "epoch {}/{} | train loss {:.4f} top1 {:.2f}% | val loss {:.4f} top1 {:.2f}% top5 {:.2f}% | {:.0f} "
        "samples/s | comm "
        "{:.1f} s comp {:.1f} s{}",
        record.epoch, run_.train.epochs,
        record.train.loss / static_cast<double>(std::max<std::int64_t>(1, record.train.samples)),
        percent(record.train.top1, record.train.samples),
        record.validation.loss / static_cast<double>(std::max<std::int64_t>(1, record.validation.samples)),
        percent(record.validation.top1, record.validation.samples),
        percent(record.validation.top5, record.validation.samples), record.samples_per_second(),
        record.seconds.mean.communication(), record.seconds.mean.computation(),
        record.replicas_compared && !record.replicas_equal ? " | REPLICAS DIFFER" : ""));
    train_ = {};
    seconds_ = {};
    bytes_sent_ = bytes_fp32_ = 0;
    carried_ = {};
    return record;
  }

  /// What the epoch's coding lost (since the last resume), and starts the next epoch's sums. Collective.
  std::vector<TensorCoding> coding_of_epoch() {
    if (errors_.empty()) return {};
    const std::vector<CodingError> sums = sum_over_ranks(transport_, errors_);
    std::vector<TensorCoding> out;
    for (std::size_t t = 0; t < sums.size(); ++t) {
      const TensorInfo& tensor = network_.tensors()[t];
      const double draws = static_cast<double>(measured_steps_) * transport_.size();
      const std::uint64_t copies = 2 * static_cast<std::uint64_t>(transport_.size() - 1) * measured_steps_;
      out.push_back({tensor.name, std::sqrt(sums[t].error / sums[t].gradient),
                     std::sqrt(sums[t].residual / draws),
                     copies * wire_bytes(tensor, codecs_[t], transport_.size())});
    }
    errors_.assign(errors_.size(), {});
    measured_steps_ = 0;
    return out;
  }

  /// This epoch's sums over ranks and mean seconds, with what came from before a resume. Collective.
  EpochSoFar epoch_so_far() {
    EpochSoFar out = carried_;
    out.train = of_all_ranks(transport_, train_);
    Seconds mine = seconds_;
    mine.total = now_seconds() - epoch_started_;
    out.seconds.add(over_ranks(transport_, mine));
    out.bytes_sent += sum_over_ranks(transport_, bytes_sent_);
    out.bytes_fp32 += bytes_fp32_;
    return out;
  }

  void save(const std::string& name) {
    if (on_gpu() && position_.step > 0) stop_if_not_finite(false);
    collect();
    CheckpointMeta meta;
    meta.so_far = epoch_so_far();
    meta.position = position_;
    meta.seed = static_cast<std::uint32_t>(run_.train.seed);
    meta.ranks = transport_.size();
    meta.batch_size = run_.train.batch_size;
    meta.batches = train_loader_.batches();
    meta.lr = rate();
    for (const CodecSpec& codec : codecs_) meta.codecs.push_back(to_text(codec));
    if (position_.batch == 0) meta.so_far = {};
    const AveragedBuffers averaged(transport_, network_);
    HostState host(network_, &optimizer_);
    host.download();
    checkpoints_.write(transport_, name, meta, training_state(host), averaged.buffers(),
                       run_.checkpoint.keep);
  }

  const RunConfig& run_;
  const TrainCommand& command_;
  Transport& transport_;
  std::unique_ptr<Trace> trace_;
  std::unique_ptr<StepTrace> step_trace_;
  std::vector<CodecSpec> codecs_;
  Network network_;
  Optimizer optimizer_;
  StepTimes times_;
  Loader train_loader_, test_loader_;
  std::optional<Exchange> exchange_;
  CapturedSteps captured_;  // goes before what it launches
  CheckpointFolder checkpoints_;

  Position position_;
  EpochSoFar carried_;
  int old_ranks_ = 0;
  BatchMetrics train_, line_;  // since the epoch's start, since the last line
  Seconds seconds_;
  std::uint64_t bytes_sent_ = 0, bytes_fp32_ = 0;  // by this rank; by all
  std::uint64_t measured_steps_ = 0;
  std::vector<CodingError> errors_;  // per tensor, of those steps
  double rate_ = 0;                  // of the last step
  double epoch_started_ = 0, compression_ = 1;
  std::int64_t parameters_ = 0;
};

}  // namespace

void train_rank(const RunConfig& run, const TrainCommand& command, const TrainData& data,
                const NetworkSpec& spec, Transport& transport) {
  std::unique_ptr<RankTrainer> trainer;
  collective_try(transport,
                 [&] { trainer = std::make_unique<RankTrainer>(run, command, data, spec, transport); });
  collective_try(transport, [&] { trainer->make_exchange(); });
  try {
    trainer->prepare_trace();
    trainer->run();
    trainer->write_trace();
  } catch (const SharedError&) {
    // What ranks have under way needs the others: none ends before all are done.
    trainer.reset();
    transport.barrier();
    throw;
  }
}

}  // namespace lpsgd
