#include "trainer/batch_inputs.h"

#include <algorithm>

namespace lpsgd {

BatchOptions batch_options(const RunConfig& run, const NetworkSpec& spec, int rank, int ranks,
                           bool training) {
  return {.global_batch = run.train.batch_size,
          .rank = rank,
          .ranks = ranks,
          .micro_batches = run.train.micro_batches,
          .seed = static_cast<std::uint32_t>(run.train.seed),
          .training = training,
          .input = spec.input_shape()};
}

LoaderOptions loader_options(const RunConfig& run, Device device, int threads, bool training) {
  const Limits limits = limits_of(run);
  const Limit& limit = training ? limits.step : limits.outside_step;
  const int workers = run.data.workers > 0 ? static_cast<int>(run.data.workers) : threads;
  return {.workers = workers,
          .prefetch = run.data.prefetch * run.train.micro_batches,
          .device = device,
          .longest_wait = limit.seconds,
          .limited_by = limit.name};
}

std::optional<PixelOptions> pixel_options(const RunConfig& run, const BatchShape& shape) {
  if (!shape.image) return std::nullopt;
  return PixelOptions{*shape.image, normalization(run.data, shape.image->channels)};
}

Samples samples_of(const Batch& batch, std::int64_t parts) {
  Samples out;
  out.inputs = batch.values;
  out.labels = batch.labels;
  out.lengths = batch.lengths;
  out.continues = batch.continues;
  out.loss_divisor = static_cast<double>(batch.global_frames) / static_cast<double>(parts);
  out.micro_batch = batch.micro_batch;
  out.pixels = batch.pixels;
  out.crops = batch.crops;
  out.read = batch.read;
  return out;
}

SequenceCounts sequences_in(const Batch& batch) {
  SequenceCounts out;
  std::int32_t longest = 0;
  for (const std::int32_t length : batch.lengths) {
    out.sequences += length > 0 ? 1 : 0;
    longest = std::max(longest, length);
  }
  out.room = static_cast<std::int64_t>(batch.lengths.size()) * longest;
  return out;
}

}  // namespace lpsgd
