#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "comm/exchange.h"
#include "comm/transport.h"
#include "core/log.h"
#include "core/printable.h"
#include "nn/graph.h"
#include "nn/plan.h"
#include "trainer/commands.h"
#include "trainer/json_text.h"
#include "trainer/run_config.h"

namespace lpsgd {

namespace {

using nlohmann::ordered_json;

/// What a rank that trains holds at least: the layers' outputs and their gradients for each sample, and the
/// parameters.
struct Memory {
  std::int64_t activations = 0, parameters = 0, frozen = 0;  // bytes
  std::int64_t micro_batches = 1;
  Compute compute = Compute::fp32;
  Recompute recompute = Recompute::none;
};

Memory memory_of(const NetworkSpec& spec, const TrainOptions& train) {
  const DataType type = train.compute == Compute::bf16 ? DataType::bf16 : DataType::f32;
  return {make_plan(spec.graph(), true, type, train.recompute).arena,
          4 * spec.graph().arena,
          4 * spec.graph().frozen_arena,
          train.micro_batches,
          train.compute,
          train.recompute};
}

std::string show_json(const NetworkSpec& spec, std::int64_t threshold, const std::vector<CodecSpec>& codecs,
                      int ranks, const Memory& memory) {
  ordered_json o;
  std::uint64_t total = 0;
  ordered_json tensors = ordered_json::array();
  for (std::size_t t = 0; t < codecs.size(); ++t) {
    const TensorInfo& tensor = spec.tensors()[t];
    const std::uint64_t bytes = wire_bytes(tensor, codecs[t], ranks);
    total += bytes;
    tensors.push_back({{"name", tensor.name},
                       {"kind", to_text(tensor.kind)},
                       {"shape", tensor.shape},
                       {"elements", tensor.elements},
                       {"codec", codecs[t].kind},
                       {"codec_options", to_text(codecs[t])},
                       {"wire_bytes", bytes}});
  }
  ordered_json frozen = ordered_json::array();
  for (const TensorInfo& tensor : spec.frozen_tensors())
    frozen.push_back({{"name", tensor.name},
                      {"kind", to_text(tensor.kind)},
                      {"shape", tensor.shape},
                      {"elements", tensor.elements}});
  ordered_json layers = ordered_json::array();
  for (const LayerInfo& layer : spec.layers())
    layers.push_back({{"name", layer.name},
                      {"kind", layer.kind},
                      {"shape", layer.shape},
                      {"parameters", layer.parameters},
                      {"flops", layer.flops},
                      {"frozen", layer.frozen},
                      {"weight_of", layer.weight_of.empty() ? nlohmann::ordered_json()
                                                            : nlohmann::ordered_json(layer.weight_of)}});
  o["network"] = spec.name();
  o["parameters"] = spec.parameters();
  o["frozen_parameters"] = spec.frozen_parameters();
  o["flops"] = spec.flops();
  o["threshold"] = threshold;
  o["wire_bytes"] = total;
  o["ranks"] = ranks;
  o["layers"] = std::move(layers);
  o["tensors"] = std::move(tensors);
  o["frozen_tensors"] = std::move(frozen);
  o["activation_bytes"] = memory.activations;
  o["parameter_bytes"] = memory.parameters;
  o["frozen_parameter_bytes"] = memory.frozen;
  o["micro_batches"] = memory.micro_batches;
  return json_text(o, 2) + "\n";
}

/// Whether the bytes depend on the number of ranks.
bool has_table(const CodecSpec& codec) {
  return make_codec(codec, {"", TensorKind::bias, {1}, 1, 0})->table_bytes() > 0;
}

std::string show_table(const NetworkSpec& spec, std::int64_t threshold, const std::vector<CodecSpec>& codecs,
                       int ranks, bool hierarchical, const Memory& memory) {
  const bool one_frame = spec.has_open_frames() && spec.input_shape()[0] == 1;
  const bool any_frozen = !spec.frozen_tensors().empty();
  std::string out = fmt::format(
      "{}: {} parameters{}, {:.2f} MFLOP a {} forward\n\n", printable(spec.name()), spec.parameters(),
      any_frozen ? fmt::format(", {} more are frozen", spec.frozen_parameters()) : "",
      static_cast<double>(spec.flops()) * 1e-6, one_frame ? "frame" : "sample");
  std::size_t width = 5;
  for (const LayerInfo& layer : spec.layers()) width = std::max(width, layer.name.size());
  for (const TensorInfo& tensor : spec.tensors()) width = std::max(width, tensor.name.size());
  out += fmt::format("{:<{}}  {:<12} {:>18} {:>12} {:>14}\n", "layer", width, "kind", "output", "parameters",
                     "FLOPs");
  for (const LayerInfo& layer : spec.layers())
    out += fmt::format("{:<{}}  {:<12} {:>18} {:>12} {:>14}{}\n", layer.name, width, layer.kind,
                       fmt::format("{}", fmt::join(layer.shape, " x ")), layer.parameters, layer.flops,
                       layer.frozen              ? "  frozen"
                       : layer.weight_of.empty() ? ""
                                                 : fmt::format("  weight of {}", layer.weight_of));
  out += fmt::format("\n{:<{}}  {:<9} {:>18} {:>12} {:>12} {:>7}  {}\n", "tensor", width, "kind", "shape",
                     "elements", "wire bytes", "ratio", "codec");
  std::uint64_t total = 0;
  for (std::size_t t = 0; t < codecs.size(); ++t) {
    const TensorInfo& tensor = spec.tensors()[t];
    const std::uint64_t bytes = wire_bytes(tensor, codecs[t], ranks);
    total += bytes;
    out += fmt::format(
        "{:<{}}  {:<9} {:>18} {:>12} {:>12} {:>6.2f}x  {}\n", tensor.name, width, to_text(tensor.kind),
        fmt::format("{}", fmt::join(tensor.shape, " x ")), tensor.elements, bytes,
        4.0 * static_cast<double>(tensor.elements) / static_cast<double>(bytes), to_text(codecs[t]));
  }
  out += fmt::format(
      "\ntensors of fewer than {} elements go as float32 unless a rule names them\none encoded copy: {} "
      "bytes, {:.2f}x less than "
      "float32; K ranks together send {}\n",
      threshold, total,
      4.0 * static_cast<double>(spec.parameters()) / static_cast<double>(std::max<std::uint64_t>(1, total)),
      hierarchical ? "2(N-1) copies a step between N blocks of ranks (docs/exchange.md)"
                   : "2(K-1) copies a step");
  if (std::ranges::any_of(codecs, [&](const CodecSpec& codec) { return has_table(codec); }))
    out += fmt::format(
        "these are the bytes with {} rank{}, as each rank's stripe of a tensor has a table of its levels; "
        "mpirun -n K lpsgd show ... counts those of K ranks\n",
        ranks, ranks > 1 ? "s" : "");
  out += fmt::format(
      "training holds {} bytes of layers' outputs and their gradients for each {}{} ({}{}), and {} bytes of "
      "parameters; the gradients take as much again, and so do{} momentum{}\n",
      memory.activations, one_frame ? "frame" : "sample", memory.micro_batches > 1 ? " of a micro-batch" : "",
      memory.compute == Compute::bf16 ? "bfloat16" : "float32",
      memory.recompute == Recompute::batch_norm ? "; batch normalisations' outputs are computed twice" : "",
      memory.parameters, memory.micro_batches > 1 ? " their sum over micro-batches and" : "es",
      any_frozen ? fmt::format("; {} bytes of frozen parameters have neither", memory.frozen) : "");
  return out;
}

}  // namespace

std::string show_command(const ShowArguments& arguments) {
  const RunConfig run = load_run_config_or_network(arguments.config, arguments.overrides);
  const NetworkSpec spec = network_of(run);
  const std::int64_t threshold = min_elements(run.exchange.policy, spec.tensors());
  const std::vector<CodecSpec> codecs = assign_codecs(run.exchange.policy, spec.tensors());
  for (const std::string& rule : unused_rules(run.exchange.policy, spec.tensors(), spec.frozen_tensors()))
    log::warn("{}", rule);
  // Bytes depend on the number of ranks only where tables travel (qsgd's optimal levels).
  const int ranks = run.exchange.transport == TransportKind::threads ? static_cast<int>(run.exchange.ranks)
                                                                     : launched_as().size;
  const Memory memory = memory_of(spec, run.train);
  if (arguments.json) return show_json(spec, threshold, codecs, ranks, memory);
  const std::string warmup = codec_warmup_text(run.exchange, codecs);
  return show_table(spec, threshold, codecs, ranks, run.exchange.collective == Collective::hierarchical,
                    memory) +
         (warmup.empty()
              ? ""
              : fmt::format("for {} all tensors go as float32, and then through their codecs\n", warmup));
}

}  // namespace lpsgd
