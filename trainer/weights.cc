#include "trainer/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "core/checksum.h"
#include "core/error.h"
#include "nn/graph.h"
#include "trainer/checkpoint.h"
#include "trainer/host_state.h"
#include "trainer/non_finite.h"

namespace lpsgd {

std::vector<NamedBuffer> named_buffers(const NetworkSpec& spec, Weights& weights) {
  std::vector<NamedBuffer> out;
  const std::vector<GraphBuffer>& buffers = spec.graph().buffers;
  for (std::size_t b = 0; b < buffers.size(); ++b)
    out.push_back({buffers[b].name, buffers[b].shape, weights.buffers.at(b)});
  return out;
}

Weights read_weights(const std::string& path, const NetworkSpec& spec) {
  const Graph& graph = spec.graph();
  Weights out;
  out.parameters.resize(static_cast<std::size_t>(graph.arena));
  for (const GraphBuffer& b : graph.buffers)
    out.buffers.emplace_back(static_cast<std::size_t>(elements_of(b.shape).value_or(0)));
  TrainingState state;
  state.tensors = &graph.tensors;
  state.parameters = out.parameters;
  state.buffers = named_buffers(spec, out);
  out.found_in = read_checkpoint_model(path, graph.tensors, out.parameters, state.buffers);
  if (const std::string found = first_non_finite(state, {}); !found.empty())
    throw FileError(fmt::format("{}: {} hold a NaN or an infinity", path, found));
  std::uint64_t sum = checksum64(std::as_bytes(std::span(out.parameters)));
  for (const std::vector<float>& b : out.buffers) sum = 31 * sum + checksum64(std::as_bytes(std::span(b)));
  out.checksum = fmt::format("{:016x}", sum);
  return out;
}

Weights read_initial_weights(const std::string& path, const NetworkSpec& spec) {
  try {
    return read_weights(path, spec);
  } catch (const Error& e) {
    throw ConfigError(fmt::format("--init: {}", e.what()));
  }
}

void set_weights(Network& network, const Weights& weights) {
  HostState host(network);
  std::ranges::copy(weights.parameters, host.parameters().begin());
  for (std::size_t b = 0; b < weights.buffers.size(); ++b)
    std::ranges::copy(weights.buffers[b], host.buffers()[b].values.begin());
  host.upload();
}

}  // namespace lpsgd
