#include "trainer/bench/loader_workers.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "core/clock.h"
#include "core/error.h"
#include "data/loader.h"
#include "trainer/bench/photographs.h"
#include "trainer/bench/samples.h"

namespace lpsgd {

namespace {

using nlohmann::ordered_json;

constexpr std::int64_t image_batch = 32, cifar_batch = 128;

std::unique_ptr<Loader> make_loader(std::shared_ptr<const ImageDataset> images, const DataOptions& data,
                                    const ImageShape& out, std::int64_t batch_size, int workers) {
  auto source = make_batch_source(
      std::move(images), data, {.global_batch = batch_size, .input = {out.height, out.width, out.channels}});
  return std::make_unique<Loader>(std::move(source), LoaderOptions{.workers = workers});
}

void drain(Loader& loader, std::int64_t epoch) {
  loader.start(epoch);
  for (std::int64_t i = 0; i < loader.batches(); ++i) loader.next();
}

/// Runs `body` in so many processes at once. Returns when all have ended.
template <class Body>
void in_processes(int count, const Body& body) {
  std::vector<pid_t> children;
  for (int i = 0; i < count; ++i) {
    const pid_t child = ::fork();
    if (child < 0) throw Error("a process cannot be started");
    if (child == 0) {
      int status = 1;
      try {
        body();
        status = 0;
      } catch (...) {  // the parent reports it
      }
      ::_exit(status);
    }
    children.push_back(child);
  }
  bool failed = false;
  for (const pid_t child : children) {
    int status = 0;
    failed |= ::waitpid(child, &status, 0) != child || status != 0;
  }
  if (failed) throw Error("a process that measures the loader has failed");
}

}  // namespace

ordered_json measure_workers(const std::shared_ptr<const ImageDataset>& images, const DataOptions& data,
                             const ImageShape& out, int workers, std::int64_t repeats) {
  // At least two passes over the images, in whole batches.
  const std::int64_t of_one = (2 * images->size() / image_batch + 1) * image_batch;
  std::vector<double> seconds, apart, ratios;
  for (std::int64_t i = 0; i < repeats; ++i) {
    const double begin = now_seconds();
    // No thread of this process runs now: a forked process has the calling thread alone.
    in_processes(workers,
                 [&] { drain(*make_loader(repeated(images, of_one), data, out, image_batch, 1), i); });
    const double middle = now_seconds();
    drain(*make_loader(repeated(images, workers * of_one), data, out, image_batch, workers), i);
    const double end = now_seconds();
    seconds.push_back(end - middle);
    apart.push_back(middle - begin);
    ratios.push_back(apart.back() / seconds.back());
  }
  const std::int64_t samples = workers * of_one;
  return {{"name", "files, through a loader"},
          {"workers", workers},
          {"images", samples},
          {"seconds", median(seconds)},
          {"images_per_s", static_cast<double>(samples) / median(seconds)},
          {"processes_seconds", median(apart)},
          {"ratio_to_processes", median(ratios)}};
}

ordered_json measure_cifar_batch(std::int64_t repeats) {
  constexpr std::int64_t batches = 64;
  DataOptions data;
  data.dataset = "noise";
  data.image = {32, 32, 3};
  data.classes = 10;
  data.train_samples = cifar_batch * batches;
  data.augment = {.pad = 4, .mirror = true};
  const auto images = std::dynamic_pointer_cast<const ImageDataset>(open_dataset(data, Split::train));
  const ImageShape shape = images->fixed_shape().value();
  const auto loader = make_loader(images, data, shape, cifar_batch, 1);
  std::vector<std::uint8_t> from(static_cast<std::size_t>(shape.bytes() * cifar_batch)), to(from.size());
  std::vector<double> seconds, copies;
  for (std::int64_t i = -1; i < repeats; ++i) {
    const double begin = now_seconds();
    drain(*loader, i + 1);
    const double middle = now_seconds();
    for (std::int64_t b = 0; b < batches; ++b) {
      from[0] = static_cast<std::uint8_t>(b);
      std::memcpy(to.data(), from.data(), from.size());
    }
    if (i < 0) continue;
    seconds.push_back((middle - begin) / batches);
    copies.push_back((now_seconds() - middle) / batches);
  }
  return {{"name", "CIFAR batch of 128, 32 x 32, pad 4, mirror"},
          {"workers", 1},
          {"images", cifar_batch},
          {"elements", static_cast<std::int64_t>(from.size())},
          {"seconds", median(seconds)},
          {"images_per_s", static_cast<double>(cifar_batch) / median(seconds)},
          {"bytes_moved", static_cast<std::int64_t>(2 * from.size())},
          {"memcpy_seconds", median(copies)},
          {"ratio_to_memcpy", median(copies) / median(seconds)}};
}

}  // namespace lpsgd
