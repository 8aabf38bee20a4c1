#include "trainer/host_state.h"

namespace lpsgd {

HostState::HostState(Network& network, const std::vector<NamedArena>& arenas)
    : stream_(network.stream()), parameters_(mirrored(network.parameters())) {
  arrays_.push_back(mirrored(network.frozen().values));
  frozen_ = {network.frozen().tensors, arrays_.back().host};
  for (const NamedArena& arena : arenas) {
    arrays_.push_back(mirrored(arena.values));
    arenas_.push_back({arena.name, arrays_.back().host, arena.own, arena.otherwise});
  }
  buffers_ = mirrored(network.buffers());
  carried_ = mirrored(network.carried_state());
}

std::vector<NamedBuffer> HostState::mirrored(const std::vector<NamedBuffer>& own) {
  std::vector<NamedBuffer> out;
  for (const NamedBuffer& b : own) {
    arrays_.push_back(mirrored(b.values));
    out.push_back({b.name, b.shape, arrays_.back().host});
  }
  return out;
}

HostState::Array HostState::mirrored(std::span<float> own) {
  if (!stream_.device().is_cuda()) return {own, own};
  return {own, copies_.emplace_back(own.size()).view()};
}

void HostState::download() {
  if (!stream_.device().is_cuda()) return;
  copy_values(parameters_.host, parameters_.own, stream_);
  for (const Array& a : arrays_) copy_values(a.host, a.own, stream_);
  stream_.synchronize();
}

void HostState::upload() {
  if (!stream_.device().is_cuda()) return;
  copy_values(parameters_.own, parameters_.host, stream_);
  for (const Array& a : arrays_) copy_values(a.own, a.host, stream_);
  stream_.synchronize();
}

}  // namespace lpsgd
