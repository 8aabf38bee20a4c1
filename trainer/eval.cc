#include <fmt/format.h>

#include <filesystem>

#include "core/error.h"
#include "nn/network.h"
#include "trainer/batch_inputs.h"
#include "trainer/checkpoint.h"
#include "trainer/commands.h"
#include "trainer/evaluate.h"
#include "trainer/host_state.h"
#include "trainer/json_text.h"
#include "trainer/run_config.h"
#include "trainer/run_folder.h"

namespace lpsgd {

std::string eval_command(const EvalArguments& arguments) {
  const RunConfig run = load_run_config(arguments.config, arguments.overrides, config::Environment::expand);
  const NetworkSpec spec = network_of(run);
  const auto seed = static_cast<std::uint32_t>(run.train.seed);
  std::shared_ptr<const Dataset> dataset;
  with_locations(run, [&] { dataset = open_dataset(run.data, Split::test); });
  check_data(run, spec, *dataset, Split::test);

  const int threads = run.train.threads > 0 ? static_cast<int>(run.train.threads) : usable_cores();
  const Device device = device_of(run.train, 0);
  Loader loader(make_batch_source(dataset, run.data, batch_options(run, spec, 0, 1, false)),
                loader_options(run, device, threads));
  Network network(spec, {.batch = run.train.batch_size,
                         .seed = seed,
                         .threads = threads,
                         .compute = run.train.compute,
                         .inference_only = true,
                         .device = device,
                         .deterministic = run.train.deterministic,
                         .pixels = pixel_options(run, loader.shape())});
  HostState state(network, nullptr);
  read_checkpoint_model(arguments.checkpoint, network.tensors(), state.parameters(), state.buffers());
  state.upload();
  const BatchMetrics m = evaluate(network, loader, state.buffers());

  const auto n = static_cast<double>(m.samples);
  const double top1 = 100.0 * static_cast<double>(m.top1) / n;
  const double top5 = 100.0 * static_cast<double>(m.top5) / n;
  if (!arguments.json)
    return fmt::format("{} samples | loss {:.4f} | top1 {:.2f}% | top5 {:.2f}%\n", m.samples, m.loss / n,
                       top1, top5);
  const nlohmann::ordered_json o = {{"checkpoint", arguments.checkpoint},
                                    {"samples", m.samples},
                                    {"val_loss", m.loss / n},
                                    {"val_top1", top1},
                                    {"val_top5", top5}};
  return json_text(o) + "\n";
}

}  // namespace lpsgd
