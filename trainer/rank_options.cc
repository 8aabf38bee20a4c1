#include "trainer/rank_options.h"

#include <cstdint>

#include "trainer/batch_inputs.h"
#include "trainer/run_folder.h"

namespace lpsgd {

namespace {

int threads_per_rank(const RunConfig& run, const Transport& transport) {
  return threads_of_rank(run.train, transport.local_size());
}

Device device_of_rank(const RunConfig& run, const Transport& transport) {
  return device_of(run.train, transport.local_rank());
}

}  // namespace

NetworkOptions network_options(const RunConfig& run, const Transport& transport, const BatchShape& shape,
                               Trace* trace) {
  return {.batch = shape.samples,
          .first = shape.samples * run.train.micro_batches * transport.rank(),
          .micro_batches = run.train.micro_batches,
          .seed = static_cast<std::uint32_t>(run.train.seed),
          .threads = threads_per_rank(run, transport),
          .compute = run.train.compute,
          .recompute = run.train.recompute,
          .label_smoothing = run.train.label_smoothing,
          .device = device_of_rank(run, transport),
          .deterministic = run.train.deterministic,
          .search_seconds = run.train.search_seconds,
          .cuda_graphs = run.train.cuda_graphs,
          .branches = run.train.branches,
          .pixels = pixel_options(run, shape),
          .trace = trace};
}

std::unique_ptr<BatchSource> batches_of(const std::shared_ptr<const Dataset>& dataset, const RunConfig& run,
                                        const NetworkSpec& spec, const Transport& transport, bool training) {
  std::unique_ptr<BatchSource> out;
  with_locations(run, [&] {
    out = make_batch_source(dataset, run.data,
                            batch_options(run, spec, transport.rank(), transport.size(), training));
  });
  return out;
}

LoaderOptions loader_options(const RunConfig& run, const Transport& transport, bool training) {
  return loader_options(run, device_of_rank(run, transport), threads_per_rank(run, transport), training);
}

}  // namespace lpsgd
