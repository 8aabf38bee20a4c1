#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "comm/waiting.h"
#include "core/error.h"
#include "core/log.h"
#include "nn/network.h"
#include "trainer/batch_inputs.h"
#include "trainer/checkpoint.h"
#include "trainer/commands.h"
#include "trainer/evaluate.h"
#include "trainer/host_state.h"
#include "trainer/json_text.h"
#include "trainer/metrics.h"
#include "trainer/non_finite.h"
#include "trainer/run_data.h"
#include "trainer/run_folder.h"

namespace lpsgd {

std::string eval_command(const EvalArguments& arguments) {
  const RunConfig run = load_run_config(arguments.config, arguments.overrides, config::Environment::expand);
  const auto seed = static_cast<std::uint32_t>(run.train.seed);
  const std::shared_ptr<const Dataset> dataset = open_split(run, Split::test);
  const NetworkSpec spec = network_for(run, {dataset.get()});
  naming_options(run, [&] { check_data(run, spec, *dataset, Split::test); });

  const int threads = run.train.threads > 0 ? static_cast<int>(run.train.threads) : usable_cores();
  const Device device = device_of(run.train, 0);
  Loader loader(make_batch_source(dataset, run.data, batch_options(run, spec, 0, 1, false)),
                loader_options(run, device, threads, false));
  Network network(spec, {.batch = run.train.batch_size,
                         .seed = seed,
                         .threads = threads,
                         .compute = run.train.compute,
                         .inference_only = true,
                         .device = device,
                         .deterministic = run.train.deterministic,
                         .search_seconds = run.train.search_seconds,
                         .pixels = pixel_options(run, loader.shape())});
  HostState state(network);
  read_checkpoint_model(arguments.checkpoint, network.tensors(), state.parameters(), state.buffers());
  TrainingState loaded;
  loaded.tensors = &network.tensors();
  loaded.parameters = state.parameters();
  loaded.buffers = state.buffers();
  const std::string bad_value = first_non_finite(loaded, {});
  if (!bad_value.empty())
    throw FileError(fmt::format("{}: {} hold a NaN or an infinity", arguments.checkpoint, bad_value));
  state.upload();
  BadSamples bad;
  BatchMetrics m;
  try {
    m = evaluate(network, loader, state.buffers(), &bad);
  } catch (const StalledError& e) {  // the loader's destructor would wait for the thread that hangs
    print_error(e.what());
    ::_exit(1);
  }
  if (m.samples == 0)
    throw FileError(fmt::format("{} (and no other sample of the test set can be read)", bad.first.at(0)));
  if (!std::isfinite(m.loss))
    throw Error(fmt::format("{}: the loss of the test set is a NaN or an infinity", arguments.checkpoint));
  if (bad.count > 0) log::warn("{}", text(bad));

  const DataKind kind = kind_of(*dataset);
  const std::int64_t samples = kind == DataKind::images ? m.samples : dataset->size();
  if (!arguments.json)
    return fmt::format("{} {} | {}\n", samples, kind == DataKind::text ? "tokens" : "samples",
                       result_text(kind, m, true));
  const auto n = static_cast<double>(m.samples);
  nlohmann::ordered_json o = {{"checkpoint", arguments.checkpoint},
                              {"samples", samples},
                              {"val_loss", m.loss / n},
                              {"val_top1", 100.0 * static_cast<double>(m.top1) / n},
                              {"val_top5", 100.0 * static_cast<double>(m.top5) / n}};
  if (kind != DataKind::images) o["frames"] = m.samples;
  if (kind == DataKind::text) o["val_perplexity"] = std::exp(m.loss / n);
  return json_text(o) + "\n";
}

}  // namespace lpsgd
