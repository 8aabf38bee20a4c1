#include "trainer/evaluate.h"

#include <algorithm>

namespace lpsgd {

namespace {

void copy_values(const std::vector<NamedBuffer>& from, const std::vector<NamedBuffer>& to) {
  for (std::size_t i = 0; i < from.size(); ++i)
    std::copy(from[i].values.begin(), from[i].values.end(), to[i].values.begin());
}

/// The buffers' values one after the other, and views into that copy.
Buffer<float> packed(const std::vector<NamedBuffer>& buffers, std::vector<NamedBuffer>& views) {
  std::size_t total = 0;
  for (const NamedBuffer& b : buffers) total += b.values.size();
  Buffer<float> values(total);
  std::size_t at = 0;
  for (const NamedBuffer& b : buffers) {
    views.push_back({b.name, b.shape, values.view().subspan(at, b.values.size())});
    at += b.values.size();
  }
  copy_values(buffers, views);
  return values;
}

}  // namespace

AveragedBuffers::AveragedBuffers(Transport& transport, const std::vector<NamedBuffer>& own)
    : values_(packed(own, averaged_)) {
  const std::size_t n = values_.size();
  const auto ranks = static_cast<std::size_t>(transport.size());
  if (n == 0 || ranks == 1) return;
  Buffer<float> all(n * ranks);
  transport.all_gather(std::as_bytes(values_.view()), std::as_writable_bytes(all.view()));
  const float scale = 1.0f / static_cast<float>(ranks);
  for (std::size_t i = 0; i < n; ++i) {
    float sum = all[i];
    for (std::size_t r = 1; r < ranks; ++r) sum += all[r * n + i];
    values_[i] = sum * scale;
  }
}

BatchMetrics evaluate(Network& network, Loader& loader, const std::vector<NamedBuffer>& with) {
  const std::vector<NamedBuffer> own = network.buffers();
  std::vector<NamedBuffer> saved;
  const Buffer<float> keep = packed(own, saved);
  copy_values(with, own);
  network.take_metrics();
  loader.start(0);
  for (std::int64_t b = loader.batches(); b > 0; --b) {
    const Batch batch = loader.next();
    network.forward_eval({batch.images, batch.labels}, batch.valid);
  }
  copy_values(saved, own);
  return network.take_metrics();
}

}  // namespace lpsgd
