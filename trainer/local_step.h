// Local SGD (Stich 2019; Lin et al. 2020): each rank trains by itself, and every H steps the ranks exchange
// what their weights have changed since they last agreed (nn/outer_step.h). It goes through the exchange of
// gradients, with its codecs and residuals, in the place of the gradients. As long as H is 1, ranks exchange
// gradients, as in every step of synchronous SGD.
//
// With fragments (trainer/fragments.h) groups of tensors take turns; with a delay ranks go on while an
// exchange is on its way, of which there is one at most (Streaming DiLoCo):
//   step t:          d = s - w leaves
//   step t + delay:  mean(d) is applied: s as in nn/outer_step.h, w = s + mix * (w - s)
// Over a transport whose messages the host moves, the exchange's thread has the transport in between. Whoever
// makes a collective waits for the exchange first, by Collectives::before. The mean is applied when it is due
// all the same, so no result depends on that.
#pragma once

#include <memory>
#include <optional>

#include "comm/block_transport.h"
#include "nn/outer_step.h"
#include "trainer/fragments.h"
#include "trainer/synchronous_step.h"

namespace lpsgd {

class LocalStep final : public SynchronousStep {
 public:
  /// As SynchronousStep's.
  LocalStep(const RunConfig& run, const std::vector<CodecSpec>& codecs, Network& network,
            Optimizer& optimizer, Transport& transport, Trace* trace)
      : LocalStep(run, codecs, network, optimizer, transport, trace,
                  fragments_of(network.tensors(), run.sync.fragments, network.parameters().size())) {}
  ~LocalStep() override;

  void set_warmup(bool on) override;
  void set_interval(std::int64_t steps) override { interval_ = steps; }
  void measure_distance() override { measure_ = true; }
  void run(Loader& loader, std::int64_t number, double lr) override;
  void settle() override { join(); }
  bool is_exchanging() const override {
    return !transport_.ordered() && transport_.size() > 1 && exchange_->is_open();
  }
  void check_finite() override;

  /// Fragments are synchronised at different times, and after a delay ranks keep some of their own.
  bool is_synchronised() const override {
    return !at_.started || (!options_.streams() && !at_.streams && at_.steps == 0 && at_.rounds == 0);
  }
  bool has_equal_momentum() const override { return !at_.started; }
  bool replicas_equal() override;

  std::vector<NamedArena> arenas() override;
  Exchange* block_exchange() override { return block_ ? &block_->exchange.coded() : nullptr; }
  SyncPosition sync_position() const override;
  /// A mean that is pending is dropped if this run has no delay. The next one then holds its changes, too.
  void set_sync_position(const SyncPosition& at) override;

 protected:
  StepMetrics measured(std::span<CodingError> errors) override;

 private:
  LocalStep(const RunConfig& run, const std::vector<CodecSpec>& codecs, Network& network,
            Optimizer& optimizer, Transport& transport, Trace* trace, std::vector<Fragment> fragments);

  void start(double lr);
  void local(Loader& loader, std::int64_t number, StepTimes& at);
  void synchronise(std::int64_t number, StepTimes& at);
  void stream(std::int64_t number, StepTimes& at);
  void send(const Fragment& fragment, std::size_t index, std::int64_t number, StepTimes& at);
  void arrive(StepTimes& at);
  void join();
  void check_arrived();
  void take_distance();
  void check_last_exchange();
  void check_exchange_before();

  /// What is exchanged.
  std::span<float> changes() { return options_.delay > 0 ? changes_.view() : network_.gradients(); }
  void difference(bool within_block);
  void submit_changes(bool within_block);
  void apply_mean(bool within_block);
  void reset_momentum(std::size_t at, std::size_t values);
  Exchange& exchange_of(bool within_block) { return within_block ? *block_->exchange : *exchange_; }

  /// With an ordered transport each is one graph, after the first few.
  struct Synchronisations {
    CapturedSteps graphs;
    std::size_t count = 0;
  };
  /// With hierarchical_local_sgd: the ranks that average among themselves in between.
  struct BlockLevel {
    BlockLevel(const RunConfig& run, const std::vector<CodecSpec>& codecs, Network& network, Transport& all,
               Trace* trace);
    const Block ranks;
    const std::unique_ptr<Transport> transport;
    StepExchange exchange;
    const std::unique_ptr<OuterStep> outer;
    Synchronisations captured;
    std::int64_t exchanges = 0;  // since the last take()
  };

  const SyncOptions& options_;
  const std::vector<Fragment> fragments_;  // the exchange's parts
  std::unique_ptr<OuterStep> outer_;
  std::optional<BlockLevel> block_;
  // Destroyed before the objects whose work they launch.
  CapturedSteps local_steps_;
  Synchronisations captured_synchronisations_;
  std::int64_t interval_ = 1;
  int behind_ = 0;  // on a GPU, steps since an exchange of all ranks whose flags were not read; 0: they were
  bool measure_ = false;
  bool unchecked_ = false;  // the pending mean may not be finite
  Deviation distance_;
  std::uint64_t bytes_average_ = 0;
  SyncPosition at_;
};

/// The step of the run's way to synchronise. Collective over some transports.
std::unique_ptr<SynchronousStep> make_step(const RunConfig& run, const std::vector<CodecSpec>& codecs,
                                           Network& network, Optimizer& optimizer, Transport& transport,
                                           Trace* trace);

}  // namespace lpsgd
