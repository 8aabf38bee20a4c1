#include "trainer/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "core/checksum.h"
#include "core/error.h"
#include "core/printable.h"
#include "core/safetensors.h"
#include "nn/graph.h"
#include "trainer/checkpoint.h"
#include "trainer/host_state.h"
#include "trainer/non_finite.h"

namespace lpsgd {

namespace {

std::vector<std::string> names_of(const NetworkSpec& spec) {
  std::vector<std::string> out;
  for (const auto* tensors : {&spec.frozen_tensors(), &spec.tensors()})
    for (const TensorInfo& tensor : *tensors) out.push_back(tensor.name);
  for (const GraphBuffer& b : spec.graph().buffers) out.push_back(b.name);
  return out;
}

/// Each pattern must name a tensor of the network or of the file.
void check_skip(const NamePatterns& skip, const NetworkSpec& spec, const SafetensorsFile& file) {
  std::vector<std::string> names = names_of(spec);
  for (const StoredTensor& stored : file.tensors()) names.push_back(stored.name);
  if (const auto unused = skip.unused(names))
    throw ConfigError(
        fmt::format("--init-skip: {} (looked for in the network and in {})", *unused, file.path()));
}

Weights read_weights(const std::string& path, const NetworkSpec& spec, NamePatterns skip) {
  const Graph& graph = spec.graph();
  Weights out;
  out.skip = std::move(skip);
  out.parameters.resize(static_cast<std::size_t>(graph.arena));
  out.frozen.resize(static_cast<std::size_t>(graph.frozen_arena));
  for (const GraphBuffer& b : graph.buffers)
    out.buffers.emplace_back(static_cast<std::size_t>(elements_of(b.shape).value_or(0)));
  TrainingState state;
  state.tensors = &graph.tensors;
  state.parameters = out.parameters;
  state.frozen = {&graph.frozen, out.frozen};
  state.buffers = named_buffers(spec, out);
  ModelFile found = find_model(path);
  const SafetensorsFile file(found.path);
  out.found_in = std::move(found.found_in);
  check_skip(out.skip, spec, file);
  read_model(file, state, out.skip);
  if (const std::string bad = first_non_finite(state, {}); !bad.empty())
    throw FileError(fmt::format("{}: {} hold a NaN or an infinity", path, bad));
  std::uint64_t sum = checksum64(std::as_bytes(std::span(out.parameters)));
  if (!out.frozen.empty()) sum = 31 * sum + checksum64(std::as_bytes(std::span(out.frozen)));
  for (const std::vector<float>& b : out.buffers) sum = 31 * sum + checksum64(std::as_bytes(std::span(b)));
  out.checksum = fmt::format("{:016x}", sum);
  return out;
}

/// What lets a run start without the tensor's values: leaving out its layer, or the tensor alone where the
/// network's layer has others.
std::string how_to_skip(const NetworkSpec& spec, const std::string& tensor) {
  const std::string layer = tensor.substr(0, tensor.rfind('.'));
  const std::vector<std::string> names = names_of(spec);
  const bool alone = std::ranges::count(names, tensor) == 0 &&
                     std::ranges::any_of(names, [&](const auto& n) { return n.starts_with(layer + "."); });
  return fmt::format("--init-skip {} leaves {} out", printable(alone ? tensor : layer),
                     alone ? "it" : "that layer");
}

}  // namespace

std::vector<NamedBuffer> named_buffers(const NetworkSpec& spec, Weights& weights) {
  std::vector<NamedBuffer> out;
  const std::vector<GraphBuffer>& buffers = spec.graph().buffers;
  for (std::size_t b = 0; b < buffers.size(); ++b)
    out.push_back({buffers[b].name, buffers[b].shape, weights.buffers.at(b)});
  return out;
}

Weights read_weights(const std::string& path, const NetworkSpec& spec) {
  return read_weights(path, spec, NamePatterns());
}

Weights read_initial_weights(const std::string& path, const NetworkSpec& spec,
                             const std::vector<std::string>& skip) {
  if (std::ranges::any_of(skip, &std::string::empty)) throw ConfigError("--init-skip: an empty name");
  try {
    return read_weights(path, spec, NamePatterns(skip));
  } catch (const UnfitTensorError& e) {
    throw ConfigError(fmt::format("--init: {}; {}", e.what(), how_to_skip(spec, e.tensor())));
  } catch (const ConfigError&) {  // of --init-skip
    throw;
  } catch (const Error& e) {
    throw ConfigError(fmt::format("--init: {}", e.what()));
  }
}

void set_weights(Network& network, const Weights& weights) {
  HostState host(network);
  if (!weights.skip.empty()) host.download();
  const auto set = [&](const std::vector<TensorInfo>& tensors, const std::vector<float>& from,
                       std::span<float> to) {
    for (const TensorInfo& tensor : tensors)
      if (!weights.skip.matches(tensor.name))
        std::copy_n(from.begin() + tensor.offset, tensor.elements, to.begin() + tensor.offset);
  };
  set(network.tensors(), weights.parameters, host.parameters());
  set(*host.frozen().tensors, weights.frozen, host.frozen().values);
  for (std::size_t b = 0; b < weights.buffers.size(); ++b)
    if (!weights.skip.matches(host.buffers()[b].name))
      std::ranges::copy(weights.buffers[b], host.buffers()[b].values.begin());
  host.upload();
}

std::vector<std::string> skipped(const NetworkSpec& spec, const Weights& weights) {
  std::vector<std::string> out = names_of(spec);
  std::erase_if(out, [&](const std::string& name) { return !weights.skip.matches(name); });
  return out;
}

}  // namespace lpsgd
