// `lpsgd data pack`: writes a shard.
#include <fmt/format.h>

#include "core/error.h"
#include "data/shards.h"
#include "trainer/data_commands.h"
#include "trainer/data_progress.h"
#include "trainer/run_config.h"
#include "trainer/run_data.h"
#include "trainer/run_folder.h"
#include "trainer/sample_threads.h"

namespace lpsgd {

namespace {

constexpr std::int64_t samples_at_once = 64;  // per thread; they are held in memory until they are written

/// One thread's.
struct Packer {
  explicit Packer(const PackOptions& options) : packer(options) {}
  ImagePacker packer;
  std::vector<std::uint8_t> file;
};

/// One sample that waits to be written: its bytes are in `memory`, or in the data set.
struct Packed {
  std::vector<std::uint8_t> memory;
  StoredImage image;
};

std::int64_t pack(const ImageDataset& dataset, const DataPackArguments& arguments, int threads,
                  ShardWriter& writer) {
  std::vector<std::unique_ptr<Packer>> packers;
  for (int t = 0; t < threads; ++t) packers.push_back(std::make_unique<Packer>(arguments.pack));
  std::vector<Packed> packed(static_cast<std::size_t>(samples_at_once * threads));
  DataProgress progress("packed", dataset.size());
  std::int64_t bytes = 0;
  for (std::int64_t first = 0; first < dataset.size(); first += static_cast<std::int64_t>(packed.size())) {
    const std::int64_t last = std::min(dataset.size(), first + static_cast<std::int64_t>(packed.size()));
    for_samples(first, last, threads, [&](int t, std::int64_t i) {
      Packer& with = *packers[static_cast<std::size_t>(t)];
      Packed& out = packed[static_cast<std::size_t>(i - first)];
      const StoredImage image = dataset.image(i, with.file);
      out.image = with.packer.pack(image, dataset.name(i), out.memory);
      if (out.image.bytes.data() == with.file.data()) {  // as it was, in memory that the next one takes
        out.memory = with.file;
        out.image.bytes = out.memory;
      }
      progress.count();
    });
    for (std::int64_t i = first; i < last; ++i) {
      const StoredImage& image = packed[static_cast<std::size_t>(i - first)].image;
      writer.add(image, dataset.label(i), dataset.name(i));
      bytes += static_cast<std::int64_t>(image.bytes.size());
    }
  }
  return bytes;
}

}  // namespace

int data_pack_command(const DataPackArguments& arguments) {
  const RunConfig run = load_run_config(arguments.config, arguments.overrides, config::Environment::expand);
  if (!is_packable(run.data.dataset))
    throw ConfigError(
        fmt::format("data pack: data set {} does not hold images from files", run.data.dataset));
  const std::shared_ptr<const Dataset> dataset = open_split(run, arguments.split);
  const auto* images = dynamic_cast<const ImageDataset*>(dataset.get());
  require(images != nullptr, "a data set that can be packed holds images");
  const int threads = run.data.workers > 0 ? static_cast<int>(run.data.workers) : usable_cores();
  ShardWriter writer(arguments.out, {run.data.dataset, arguments.split, images->classes()});
  const std::int64_t bytes = pack(*images, arguments, threads, writer);
  writer.finish();
  fmt::print("{}: {} images of data set {}, split {}, {:.1f} MB\n", arguments.out, images->size(),
             run.data.dataset, arguments.split == Split::train ? "train" : "test",
             static_cast<double>(bytes) * 1e-6);
  return 0;
}

}  // namespace lpsgd
