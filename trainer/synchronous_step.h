// The training step of synchronous data-parallel SGD: every step the ranks exchange their gradients, so that
// all make the same update. Other ways to synchronise ranks would be classes beside this one.
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

namespace lpsgd {

/// "step 7: the gradient of 'fc1.weight' on rank 1 holds a NaN or an infinity"
std::string text(const NonFinite& found, const std::vector<TensorInfo>& tensors);

/// One rank's steps: forward, backward while gradients are exchanged, update.
class SynchronousStep {
 public:
  /// The arguments outlive the object; `trace` may be null. Collective over some transports.
  SynchronousStep(const RunConfig& run, const std::vector<CodecSpec>& codecs, Network& network,
                  Optimizer& optimizer, Transport& transport, Trace* trace);

  /// Runs step `number`, counted from the run's start, on the loader's next batch with learning rate `lr`.
  /// Throws NonFiniteError before the update on the CPU. On a GPU the check is one step behind, so the next
  /// run() or check_finite() throws. Collective.
  void run(Loader& loader, std::int64_t number, double lr);
  /// Throws NonFiniteError if the last step's gradients were non-finite. Waits for a GPU. Collective.
  void check_finite();
  /// What the steps since the last call measured. With metrics.codec_error the coding errors are added to
  /// `errors`, one entry per tensor. Waits for a GPU.
  StepMetrics take(std::span<CodingError> errors);

  /// Residuals, for checkpoints.
  ExchangeState state() const { return exchange_.state(); }
  std::vector<ResidualSizes> residual_sizes() const { return exchange_.residual_sizes(); }
  /// See Exchange::copy_state.
  void copy_residuals(const ResidualViews& to) const { exchange_.copy_state(to); }
  void set_state(const ExchangeState& state) { exchange_.set_state(state); }

 private:
  /// The parts of a step's time: the host's on the CPU, the compute stream's on a GPU, where `data` is the
  /// time in which the stream is idle.
  struct Times {
    explicit Times(StreamView stream)
        : data(stream), forward(stream), backward(stream), exposed(stream), update(stream) {}
    Stopwatch data, forward, backward, exposed, update;
  };

  void backward();
  void update() { optimizer_.step(network_.parameters(), network_.gradients()); }
  bool is_captured(std::int64_t number);
  void check(bool step_before);

  const RunConfig& run_;
  Network& network_;
  Optimizer& optimizer_;
  Transport& transport_;
  const bool on_gpu_;
  Times times_;
  std::optional<StepTrace> trace_;
  Exchange exchange_;
  CapturedSteps captured_;  // destroyed before the objects whose work it launches
  std::uint64_t fp32_bytes_of_step_;
  // Since the last take().
  std::int64_t steps_ = 0;
  BadSamples bad_samples_;
  SequenceCounts sequences_;
  bool has_run_ = false;
};

}  // namespace lpsgd
