// A copy of what a checkpoint holds of one rank, so that training goes on while it is written.
#pragma once

#include <span>
#include <vector>

#include "core/device.h"
#include "nn/network.h"
#include "trainer/checkpoint.h"
#include "trainer/synchronous_step.h"

namespace lpsgd {

/// Host memory that is allocated once: page-locked if the network is on a GPU.
class StateSnapshot {
 public:
  /// `with_replica`: also of what is the same on all ranks, so that one of them writes it: the weights, the
  /// arenas that no rank has of its own, and the averaged running statistics. The references outlive the
  /// object.
  StateSnapshot(Network& network, SynchronousStep& step, bool with_replica);

  /// Copies the state as it is now, and waits for the device. `weights` are the model's: the network's, or
  /// their average over ranks. `averaged`: the running statistics over ranks.
  void take(bool inside_epoch, std::span<const float> weights, const std::vector<NamedBuffer>& averaged);

  /// As it was when it was taken. Without the replica `parameters` is empty; between epochs there is no
  /// carried state.
  const TrainingState& state() const { return state_; }
  const std::vector<NamedBuffer>& averaged() const { return averaged_; }

 private:
  /// The next `size` values of memory_.
  std::span<float> part(std::size_t size);
  std::vector<NamedBuffer> parts(const std::vector<NamedBuffer>& own);

  Network& network_;
  SynchronousStep& step_;
  std::vector<NamedArena> copied_;  // of the step's
  PinnedBuffer<float> memory_;
  std::size_t used_ = 0;  // values
  TrainingState state_;
  std::vector<NamedBuffer> averaged_, carried_;
};

}  // namespace lpsgd
