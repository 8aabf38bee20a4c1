#include "trainer/batch_inputs.h"

namespace lpsgd {

BatchOptions batch_options(const RunConfig& run, const NetworkSpec& spec, int rank, int ranks,
                           bool training) {
  return {.global_batch = run.train.batch_size,
          .rank = rank,
          .ranks = ranks,
          .seed = static_cast<std::uint32_t>(run.train.seed),
          .training = training,
          .input = spec.input_shape()};
}

LoaderOptions loader_options(const RunConfig& run, Device device, int threads) {
  const int workers = run.data.workers > 0 ? static_cast<int>(run.data.workers) : threads;
  return {.workers = workers, .prefetch = run.data.prefetch, .device = device};
}

std::optional<PixelOptions> pixel_options(const RunConfig& run, const BatchShape& shape) {
  if (!shape.image) return std::nullopt;
  return PixelOptions{*shape.image, normalization(run.data, shape.image->channels)};
}

Samples samples_of(const Batch& batch) {
  Samples out;
  out.inputs = batch.values;
  out.labels = batch.labels;
  out.lengths = batch.lengths;
  out.pixels = batch.pixels;
  out.crops = batch.crops;
  out.read = batch.read;
  return out;
}

}  // namespace lpsgd
