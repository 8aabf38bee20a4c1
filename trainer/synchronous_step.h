// The training step of synchronous data-parallel SGD: every step the ranks exchange their gradients, so that
// all make the same update. It is also the base of other ways to synchronise ranks (trainer/local_step.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/exchange.h"
#include "comm/transport.h"
#include "core/stopwatch.h"
#include "data/loader.h"
#include "nn/network.h"
#include "nn/optimizer.h"
#include "trainer/captured_step.h"
#include "trainer/epoch_sums.h"
#include "trainer/non_finite.h"
#include "trainer/rank_trace.h"
#include "trainer/run_config.h"
#include "trainer/step_exchange.h"
#include "trainer/step_part.h"
#include "trainer/sync_position.h"

namespace lpsgd {

/// "step 7: the gradient of 'fc1.weight' on rank 1 holds a NaN or an infinity". `what` was exchanged.
std::string text(const NonFinite& found, const std::vector<TensorInfo>& tensors,
                 const char* what = "gradient");

/// The options in this run of the exchange between these ranks. Collective.
ExchangeOptions exchange_options(const RunConfig& run, Transport& transport, StreamView compute, Trace* trace,
                                 const std::vector<std::size_t>& parts = {});

/// One rank's steps: forward, backward while gradients are exchanged, update.
class SynchronousStep {
 public:
  /// The arguments outlive the object; `trace` may be null. `parts`: see ExchangeOptions. `own_arena`: what
  /// is exchanged lies in changes_ instead of the gradients' arena. Collective.
  SynchronousStep(const RunConfig& run, const std::vector<CodecSpec>& codecs, Network& network,
                  Optimizer& optimizer, Transport& transport, Trace* trace,
                  const std::vector<std::size_t>& parts = {}, bool own_arena = false);
  virtual ~SynchronousStep() = default;
  SynchronousStep(const SynchronousStep&) = delete;
  SynchronousStep& operator=(const SynchronousStep&) = delete;

  /// From the next step on gradients go as float32, or through the codecs again. Residuals stay as they are.
  /// To be called after settle(), check_finite() and take(). Collective.
  virtual void set_warmup(bool on);
  bool is_warmup() const { return exchange_.is_warmup(); }
  /// How many steps the next ones have from synchronisation to synchronisation.
  virtual void set_interval(std::int64_t) {}
  /// The next synchronisation of what local steps changed begins by measuring how far replicas are apart.
  virtual void measure_distance() {}
  /// Runs step `number`, counted from the run's start, on the loader's next batch with learning rate `lr`.
  /// Throws NonFiniteError before the update on the CPU. On a GPU the check is one step behind, so the next
  /// run() or check_finite() throws. Collective.
  virtual void run(Loader& loader, std::int64_t number, double lr);
  /// Waits for an exchange that is still on its way. The time counts as the steps'.
  virtual void settle() {}
  /// Whether an exchange goes on while the ranks train, so that any other collective would wait for it. The
  /// same on all ranks.
  virtual bool is_exchanging() const { return false; }
  /// Throws NonFiniteError if the last step's gradients were non-finite. Waits for a GPU. Collective.
  virtual void check_finite();
  /// What the steps since the last call measured. With metrics.codec_error the coding errors are added to
  /// `errors`, one entry per tensor. Waits for a GPU.
  StepMetrics take(std::span<CodingError> errors);

  /// Whether the ranks' weights are the same now.
  virtual bool is_synchronised() const { return true; }
  /// Whether the optimizer's arenas are, too.
  virtual bool has_equal_momentum() const { return true; }
  /// Whether all ranks have the same bytes in the weights that they last agreed on. Waits for a GPU.
  /// Collective.
  virtual bool replicas_equal();

  /// What checkpoints hold beside weights, running statistics and residuals. The views stay valid.
  virtual std::vector<NamedArena> arenas() { return optimizer_.arenas(); }
  virtual SyncPosition sync_position() const { return {}; }
  virtual void set_sync_position(const SyncPosition&) {}
  /// The exchange within a block of ranks, or null.
  virtual Exchange* block_exchange() { return nullptr; }
  /// Residuals, for checkpoints.
  ExchangeState state() const { return exchange_.coded().state(); }
  ResidualLayout residual_layout() const { return exchange_.coded().residual_layout(); }
  std::vector<ResidualSizes> residual_sizes() const { return exchange_.coded().residual_sizes(); }
  /// See Exchange::copy_state.
  void copy_residuals(const ResidualViews& to) const { exchange_.coded().copy_state(to); }
  void set_state(const ExchangeState& state) { exchange_.coded().set_state(state); }

 protected:
  /// What take() returns, but for the limit on exposed_codec.
  virtual StepMetrics measured(std::span<CodingError> errors);

  /// The parts of a step's time: the host's on the CPU, the compute stream's on a GPU, where `data` is the
  /// time in which the stream is idle.
  struct Times {
    explicit Times(StreamView stream)
        : data(stream), forward(stream), backward(stream), exposed(stream), update(stream) {}
    Stopwatch data, forward, backward, exposed, update;
  };

  /// The step up to the forward pass of its last micro-batch.
  void forward(Loader& loader, std::int64_t number, StepTimes& at);
  void end_step(std::int64_t number, const StepTimes& at);
  void update() { optimizer_.step(network_.parameters(), network_.gradients()); }
  /// A part of the step that updates. Returns when it ended.
  template <class Work>
  double update_part(const Work& work) {
    return part("update", times_.update, [&] { trace_ ? trace_->update(work) : work(); });
  }
  /// `step_before`: checks the step before the last one, without waiting for the last one.
  void check(bool step_before, const char* what = "gradient");
  std::uint64_t checksum_of(std::span<const float> weights) const;
  std::uint64_t frozen_checksum() const;  // of the weights that are not trained; 0: there are none

  const RunConfig& run_;
  Network& network_;
  Optimizer& optimizer_;
  Transport& transport_;
  const bool on_gpu_;
  Times times_;
  std::optional<StepTrace> trace_;
  DeviceBuffer<float> changes_;  // laid out like the gradients
  StepExchange exchange_;
  CapturedSteps captured_;  // destroyed before the objects whose work it launches
  std::uint64_t fp32_bytes_of_step_;
  // Since the last take().
  std::int64_t steps_ = 0;
  BadSamples bad_samples_;
  SequenceCounts sequences_;
  std::int64_t exchanges_ = 0;
  bool has_run_ = false;

 private:
  void micro_batch(Loader& loader, std::int64_t number, StepTimes& at);  // up to its forward pass
  void backward();
  bool is_captured(std::int64_t number);
};

}  // namespace lpsgd
