#include "trainer/state_snapshot.h"

#include <cstddef>
#include <utility>

namespace lpsgd {

namespace {

std::size_t values_of(const std::vector<NamedBuffer>& buffers) {
  std::size_t sum = 0;
  for (const NamedBuffer& b : buffers) sum += b.values.size();
  return sum;
}

void copy_all(const std::vector<NamedBuffer>& to, const std::vector<NamedBuffer>& from, StreamView stream) {
  for (std::size_t i = 0; i < to.size(); ++i) copy_values(to[i].values, from[i].values, stream);
}

}  // namespace

StateSnapshot::StateSnapshot(Network& network, SynchronousStep& step, bool with_replica)
    : network_(network), step_(step) {
  const std::vector<NamedBuffer> buffers = network.buffers(), carried = network.carried_state();
  std::vector<ResidualSizes> residuals = step.residual_sizes(), of_block;
  if (step.block_exchange()) of_block = step.block_exchange()->residual_sizes();
  for (const NamedArena& arena : step.arenas())
    if (with_replica || arena.own) copied_.push_back(arena);
  std::size_t size = values_of(buffers) + values_of(carried);
  for (const auto* sizes : {&residuals, &of_block})
    for (const ResidualSizes& one : *sizes) size += one.round1 + one.round2;
  for (const NamedArena& arena : copied_) size += arena.values.size();
  if (with_replica) size += network.parameters().size() + network.frozen().values.size() + values_of(buffers);
  memory_ = PinnedBuffer<float>(network.stream().device(), size);

  state_.tensors = &network.tensors();
  if (with_replica) {
    state_.parameters = part(network.parameters().size());
    state_.frozen = {network.frozen().tensors, part(network.frozen().values.size())};
    averaged_ = parts(buffers);
  }
  for (const NamedArena& arena : copied_)
    state_.arenas.push_back({arena.name, part(arena.values.size()), arena.own, arena.otherwise});
  for (const auto& [sizes, views] :
       {std::pair{&residuals, &state_.residuals}, {&of_block, &state_.block_residuals}})
    for (const ResidualSizes& one : *sizes) {
      views->round1.push_back(part(one.round1));
      views->round2.push_back(part(one.round2));
    }
  state_.buffers = parts(buffers);
  carried_ = parts(carried);
}

void StateSnapshot::take(bool inside_epoch, std::span<const float> weights,
                         const std::vector<NamedBuffer>& averaged) {
  const StreamView stream = network_.stream();
  if (!state_.parameters.empty()) {
    copy_values(state_.parameters, weights, stream);
    copy_values(state_.frozen.values, network_.frozen().values, stream);
    copy_all(averaged_, averaged, {});
  }
  for (std::size_t i = 0; i < copied_.size(); ++i)
    copy_values(state_.arenas[i].values, copied_[i].values, stream);
  step_.copy_residuals(state_.residuals);
  if (step_.block_exchange()) step_.block_exchange()->copy_state(state_.block_residuals);
  copy_all(state_.buffers, network_.buffers(), stream);
  state_.carried.clear();
  if (inside_epoch) {
    copy_all(carried_, network_.carried_state(), stream);
    state_.carried = carried_;
  }
  stream.synchronize();
}

std::span<float> StateSnapshot::part(std::size_t size) {
  const std::span<float> out = memory_.view().subspan(used_, size);
  used_ += size;
  return out;
}

std::vector<NamedBuffer> StateSnapshot::parts(const std::vector<NamedBuffer>& own) {
  std::vector<NamedBuffer> out;
  for (const NamedBuffer& b : own) out.push_back({b.name, b.shape, part(b.values.size())});
  return out;
}

}  // namespace lpsgd
