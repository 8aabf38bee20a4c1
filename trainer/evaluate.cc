#include "trainer/evaluate.h"

#include <unistd.h>

#include <algorithm>

#include "comm/waiting.h"
#include "core/error.h"
#include "trainer/batch_inputs.h"

namespace lpsgd {

namespace {

/// Queues a copy on `stream`; either side may be a device's memory.
void copy_buffers(const std::vector<NamedBuffer>& from, const std::vector<NamedBuffer>& to,
                  StreamView stream) {
  for (std::size_t i = 0; i < from.size(); ++i) copy_values(to[i].values, from[i].values, stream);
}

/// A copy of the buffers' values on the host, one after the other, and views into it.
Buffer<float> packed(const std::vector<NamedBuffer>& buffers, StreamView stream,
                     std::vector<NamedBuffer>& views) {
  std::size_t total = 0;
  for (const NamedBuffer& b : buffers) total += b.values.size();
  Buffer<float> values(total);
  std::size_t at = 0;
  for (const NamedBuffer& b : buffers) {
    views.push_back({b.name, b.shape, values.view().subspan(at, b.values.size())});
    at += b.values.size();
  }
  copy_buffers(buffers, views, stream);
  stream.synchronize();
  return values;
}

}  // namespace

AveragedBuffers::AveragedBuffers(Transport& transport, Network& network)
    : values_(packed(network.buffers(), network.stream(), averaged_)) {
  const std::size_t n = values_.size();
  const auto ranks = static_cast<std::size_t>(transport.size());
  if (n == 0 || ranks == 1) return;
  Buffer<float> all(n * ranks);
  transport.all_gather(std::as_bytes(values_.view()), std::as_writable_bytes(all.view()));
  const float scale = 1.0f / static_cast<float>(ranks);
  std::size_t begin = 0;
  for (const NamedBuffer& b : network.buffers()) {
    const std::size_t end = begin + b.values.size();
    for (std::size_t i = begin; i < end && !b.frozen; ++i) {  // a mean of equal values may be rounded
      float sum = all[i];
      for (std::size_t r = 1; r < ranks; ++r) sum += all[r * n + i];
      values_[i] = sum * scale;
    }
    begin = end;
  }
}

BatchMetrics evaluate(Network& network, Loader& loader, const std::vector<NamedBuffer>& with, BadSamples* bad,
                      const std::function<bool()>& go_on) {
  const std::vector<NamedBuffer> own = network.buffers();
  std::vector<NamedBuffer> saved;
  const StreamView stream = network.stream();
  const Buffer<float> keep = packed(own, stream, saved);
  copy_buffers(with, own, stream);
  network.take_metrics();
  loader.start(0);
  const auto end = [&] {
    copy_buffers(saved, own, stream);
    return network.take_metrics();  // and waits for the copies
  };
  try {
    for (std::int64_t b = loader.batches(); b > 0; --b) {
      const Batch batch = loader.next();
      if (bad) bad->add(batch.bad_samples);
      network.forward_eval(samples_of(batch, 1), batch.valid);
      if (go_on && !go_on()) break;
    }
  } catch (const FileError&) {
    end();
    throw;
  }
  return end();
}

NetworkOptions inference_options(const RunConfig& run, Device device, int threads, const BatchShape& shape) {
  return {.batch = shape.samples,
          .micro_batches = run.train.micro_batches,
          .seed = static_cast<std::uint32_t>(run.train.seed),
          .threads = threads,
          .compute = run.train.compute,
          .inference_only = true,
          .device = device,
          .deterministic = run.train.deterministic,
          .search_seconds = run.train.search_seconds,
          .cuda_graphs = run.train.cuda_graphs,
          .branches = run.train.branches,
          .pixels = pixel_options(run, shape)};
}

void end_if_stalled(const std::function<void()>& body) {
  try {
    body();
  } catch (const StalledError& e) {
    print_error(e.what());
    ::_exit(1);
  }
}

}  // namespace lpsgd
