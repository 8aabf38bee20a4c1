// `lpsgd data pack`: writes a shard.
#include <fmt/format.h>

#include <optional>

#include "core/error.h"
#include "core/log.h"
#include "core/printable.h"
#include "data/class_names.h"
#include "data/shards.h"
#include "trainer/bad_samples.h"
#include "trainer/data_commands.h"
#include "trainer/data_progress.h"
#include "trainer/print.h"
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
  std::optional<std::string> error;  // of one that is left out
};

struct Counts {
  explicit Counts(std::int64_t classes) : of_class(static_cast<std::size_t>(classes)), left_out(of_class) {}
  std::int64_t images = 0, bytes = 0;
  std::vector<std::int64_t> of_class, left_out;
  BadSamples bad;
};

void pack(Packer& with, const ImageDataset& dataset, std::int64_t i, Packed& out) {
  const StoredImage image = dataset.image(i, with.file);
  out.image = with.packer.pack(image, dataset.name(i), out.memory);
  if (out.image.bytes.data() == with.file.data()) {  // as it was, in memory that the next one takes
    out.memory = with.file;
    out.image.bytes = out.memory;
  }
}

Counts pack(const ImageDataset& dataset, const DataPackArguments& arguments, OnBadSample on_bad, int threads,
            ShardWriter& writer) {
  std::vector<std::unique_ptr<Packer>> packers;
  for (int t = 0; t < threads; ++t) packers.push_back(std::make_unique<Packer>(arguments.pack));
  std::vector<Packed> packed(static_cast<std::size_t>(samples_at_once * threads));
  DataProgress progress("packed", dataset.size());
  Counts counts(dataset.classes());
  for (std::int64_t first = 0; first < dataset.size(); first += static_cast<std::int64_t>(packed.size())) {
    const std::int64_t last = std::min(dataset.size(), first + static_cast<std::int64_t>(packed.size()));
    for_samples(first, last, threads, [&](int t, std::int64_t i) {
      Packed& out = packed[static_cast<std::size_t>(i - first)];
      out.error.reset();
      try {
        pack(*packers[static_cast<std::size_t>(t)], dataset, i, out);
      } catch (const FileError& e) {
        if (on_bad == OnBadSample::error) throw;
        out.error = e.what();
      }
      progress.count();
    });
    for (std::int64_t i = first; i < last; ++i) {
      const Packed& sample = packed[static_cast<std::size_t>(i - first)];
      const auto label = static_cast<std::size_t>(dataset.label(i));
      if (sample.error) {
        counts.bad.add({&*sample.error, 1});
        ++counts.left_out[label];
        continue;
      }
      writer.add(sample.image, dataset.label(i), dataset.name(i));
      ++counts.images;
      ++counts.of_class[label];
      counts.bytes += static_cast<std::int64_t>(sample.image.bytes.size());
    }
  }
  return counts;
}

/// Training and evaluation go on without such a class, so nothing else would tell of it.
void warn_of_lost_classes(const Counts& counts) {
  for (std::size_t c = 0; c < counts.of_class.size(); ++c)
    if (counts.of_class[c] == 0 && counts.left_out[c] > 0)
      log::warn("class {} has no image in the shard: all {} of it cannot be read", c, counts.left_out[c]);
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
  ShardWriter writer(arguments.out, {run.data.dataset, arguments.split, images->classes(),
                                     class_names(run.data.dataset, images)});
  const Counts counts = pack(*images, arguments, run.data.on_bad_sample, threads, writer);
  if (counts.images == 0)
    throw FileError(fmt::format("{} (and no other image of the split can be read)", counts.bad.first.at(0)));
  writer.finish();
  if (counts.bad.count > 0) log::warn("{}", text(counts.bad));
  warn_of_lost_classes(counts);
  return print(fmt::format("{}: {} images of data set {}, split {}, {:.1f} MB\n", printable(arguments.out),
                           counts.images, run.data.dataset,
                           arguments.split == Split::train ? "train" : "test",
                           static_cast<double>(counts.bytes) * 1e-6));
}

}  // namespace lpsgd
