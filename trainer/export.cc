#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"
#include "core/paths.h"
#include "data/dataset.h"
#include "nn/graph.h"
#include "trainer/checkpoint_manifest.h"
#include "trainer/commands.h"
#include "trainer/json_text.h"
#include "trainer/onnx_model.h"
#include "trainer/trained_run.h"
#include "trainer/weights.h"

namespace lpsgd {

namespace {

/// What a user of the model needs to know beside it.
std::map<std::string, std::string> metadata_of(const TrainedRun& run, const std::string& checkpoint) {
  std::map<std::string, std::string> out{
      {"network", run.network.name()}, {"dataset", run.config.data.dataset}, {"checkpoint", checkpoint}};
  if (!run.classes.empty()) out["classes"] = json_text(run.classes);
  if (!run.network.is_sequence()) {
    const Normalization norm = normalization(run.config.data, run.network.input_shape().back());
    out["mean"] = json_text(norm.mean);
    out["std"] = json_text(norm.std);
  }
  if (is_folder(checkpoint) && path_exists(checkpoint + "/manifest.json")) {
    const Position at = read_manifest(checkpoint).position;
    out["epoch"] = std::to_string(at.epoch);
    out["step"] = std::to_string(at.step);
  }
  return out;
}

}  // namespace

std::string export_command(const ExportArguments& arguments) {
  const TrainedRun run = open_trained_run(arguments.run, arguments.checkpoint, {});
  if (arguments.state && run.network.graph().carried.empty())
    throw ConfigError(fmt::format("--state: {} has no recurrent layer", run.network.name()));
  Weights weights = read_weights(run.weights, run.network);
  OnnxSummary made;
  const std::string bytes =
      onnx_model(run.network, weights.parameters, weights.frozen, named_buffers(run.network, weights),
                 {.has_state = arguments.state, .metadata = metadata_of(run, weights.found_in)}, &made);
  replace_file(
      file_behind(arguments.onnx, "--onnx"), [&](const std::string& to) { write_file(to, bytes); },
      unlikely_suffix);
  if (arguments.json)
    return json_text({{"file", arguments.onnx},
                      {"checkpoint", weights.found_in},
                      {"bytes", bytes.size()},
                      {"parameters", run.network.parameters()},
                      {"operators", made.operators},
                      {"opset", made.opset},
                      {"inputs", made.inputs},
                      {"outputs", made.outputs}},
                     2) +
           "\n";
  std::string out = fmt::format("{}: {:.1f} MB, {} parameters of {}, {} operators, opset {}\n",
                                arguments.onnx, static_cast<double>(bytes.size()) / 1e6,
                                run.network.parameters(), weights.found_in, made.operators, made.opset);
  for (const std::string& in : made.inputs) out += fmt::format("  in   {}\n", in);
  for (const std::string& o : made.outputs) out += fmt::format("  out  {}\n", o);
  return out;
}

}  // namespace lpsgd
