#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "core/log.h"
#include "data/class_names.h"
#include "nn/network.h"
#include "trainer/batch_inputs.h"
#include "trainer/checkpoint_list.h"
#include "trainer/checkpoint_manifest.h"
#include "trainer/commands.h"
#include "trainer/evaluate.h"
#include "trainer/json_text.h"
#include "trainer/metrics.h"
#include "trainer/run_data.h"
#include "trainer/run_folder.h"
#include "trainer/weights.h"

namespace lpsgd {

namespace {

/// The folder of the run that wrote `found_in`, a checkpoint's folder or the model in it; empty if it is
/// none.
std::string run_folder_of(const std::string& found_in) {
  std::filesystem::path at = std::filesystem::absolute(found_in);
  if (at.filename() == model_file) at = at.parent_path();
  const std::filesystem::path above = at.parent_path();
  const bool is_checkpoint = above.filename() == "checkpoints" && is_checkpoint_name(at.filename().string());
  return is_checkpoint ? above.parent_path().string() : "";
}

}  // namespace

std::string eval_command(const EvalArguments& arguments) {
  RunConfig run = load_run_config(arguments.config, arguments.overrides, config::Environment::expand);
  run.train.freeze.clear();
  // They divide the batch of each rank that trained, and need not divide that of one.
  if (run.train.batch_size % run.train.micro_batches != 0) run.train.micro_batches = 1;
  const std::shared_ptr<const Dataset> dataset = open_split(run, Split::test);
  const NetworkSpec spec = network_for(run, {dataset.get()});
  naming_options(run, [&] { check_data(run, spec, *dataset, Split::test); });

  const int threads = threads_of_rank(run.train, 1);
  const Device device = device_of(run.train, 0);
  Loader loader(make_batch_source(dataset, run.data, batch_options(run, spec, 0, 1, false)),
                loader_options(run, device, threads, false));
  Network network(spec, inference_options(run, device, threads, loader.shape()));
  Weights weights = read_weights(arguments.checkpoint, spec);
  set_weights(network, weights);
  if (const std::string folder = run_folder_of(weights.found_in); !folder.empty())
    warn_of_other_classes(folder, class_names(run.data.dataset, dataset.get()));
  BadSamples bad;
  BatchMetrics m;
  end_if_stalled([&] { m = evaluate(network, loader, named_buffers(spec, weights), &bad); });
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
