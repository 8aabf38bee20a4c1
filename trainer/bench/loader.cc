// `lpsgd bench loader`: how fast images become samples, beside OpenCV's decoder and resize in the same run.
#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <opencv2/imgcodecs.hpp>
#include <opencv2/imgproc.hpp>
#include <optional>

#include "core/clock.h"
#include "core/philox.h"
#include "data/image_reader.h"
#include "data/opencv.h"
#include "trainer/bench/commands.h"
#include "trainer/bench/loader_workers.h"
#include "trainer/bench/photographs.h"
#include "trainer/bench/samples.h"
#include "trainer/json_text.h"

namespace lpsgd {

namespace {

using nlohmann::ordered_json;

constexpr ImageShape sample{224, 224, 3};
constexpr int generated = 64;

ImageTransform training() {
  ImageTransform out;
  out.augment.mirror = true;
  out.augment.crop.kind = CropOptions::Kind::random_resized;
  out.evaluate.side_ratio = 0.875;
  return out;
}

PhiloxSequence draws(std::int64_t i, std::int64_t epoch) {
  return {1, RandomUse::augmentation, static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(epoch)};
}

/// Reads every image once, on this thread.
using Pass = std::function<void(std::int64_t epoch)>;

/// As the loader does. Mirroring, which the network does beside the scaling, is added.
Pass reader_pass(const std::shared_ptr<const ImageDataset>& images, const ImageTransform& transform) {
  const auto reader = std::make_shared<ImageReader>(transform, sample);
  return [=](std::int64_t epoch) {
    std::vector<std::uint8_t> file;
    cv::Mat out(static_cast<int>(sample.height), static_cast<int>(sample.width), CV_8UC3), mirrored;
    for (std::int64_t i = 0; i < images->size(); ++i) {
      PhiloxSequence random = draws(i, epoch);
      const PixelCrop crop = reader->read(images->image(i, file), images->name(i), &random, out.data);
      if (crop.mirrored) cv::flip(out, mirrored, 1);
    }
  };
}

/// cv::imdecode and cv::resize of the same files, boxes and mirrorings.
Pass opencv_pass(const std::shared_ptr<const ImageDataset>& images) {
  return [=](std::int64_t epoch) {
    const CropOptions crop;
    std::vector<std::uint8_t> file;
    cv::Mat decoded, resized, mirrored, out;
    for (std::int64_t i = 0; i < images->size(); ++i) {
      const auto bytes = images->image(i, file).bytes;
      const cv::Mat in(1, static_cast<int>(bytes.size()), CV_8UC1, const_cast<std::uint8_t*>(bytes.data()));
      decoded = opencv_imdecode(in, cv::IMREAD_COLOR, &decoded);
      PhiloxSequence random = draws(i, epoch);
      const Box box = random_resized_box(decoded.cols, decoded.rows, crop.area, crop.aspect, random);
      const cv::Rect part(static_cast<int>(box.left), static_cast<int>(box.top), static_cast<int>(box.width),
                          static_cast<int>(box.height));
      cv::resize(decoded(part), resized, {static_cast<int>(sample.width), static_cast<int>(sample.height)});
      const bool flips = (random.next() & 1u) != 0;
      if (flips) cv::flip(resized, mirrored, 1);
      cv::cvtColor(flips ? mirrored : resized, out, cv::COLOR_BGR2RGB);
    }
  };
}

struct Measurement {
  std::string name;
  Pass pass;
  std::vector<double> seconds = {};
};

/// One after the other in each round, so that other load on the machine slows them alike.
void measure(std::vector<Measurement>& measurements, std::int64_t repeats, bool cpu_time) {
  const auto now = [&] { return cpu_time ? cpu_seconds(CpuTime::thread) : now_seconds(); };
  for (std::int64_t i = -1; i < repeats; ++i)  // the first round warms up
    for (Measurement& m : measurements) {
      const double begin = now();
      m.pass(i + 1);
      if (i >= 0) m.seconds.push_back(now() - begin);
    }
}

/// The median over the rounds of b's seconds over a's.
double ratio(const Measurement& b, const Measurement& a) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < a.seconds.size(); ++i) ratios.push_back(b.seconds[i] / a.seconds[i]);
  return median(ratios);
}

std::vector<Measurement> reading(const std::shared_ptr<const ImageDataset>& images,
                                 const ScratchFolder& scratch) {
  ImageTransform jitter = training(), lighting = training(), area = training();
  jitter.augment.jitter = {.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1};
  lighting.augment.pca = 0.1;
  area.interpolation = Interpolation::area;
  const auto packed_images = packed(*images, {.short_side = 256, .quality = 90}, scratch.path("jpeg.shard"));
  const auto decoded = packed(*images, {.short_side = 256, .decoded = true}, scratch.path("decoded.shard"));
  return {{"cv::imdecode + cv::resize", opencv_pass(images)},
          {"files", reader_pass(images, training())},
          {"files, interpolation area", reader_pass(images, area)},
          {"files, colour jitter", reader_pass(images, jitter)},
          {"files, PCA lighting", reader_pass(images, lighting)},
          {"packed JPEG, short side 256, quality 90", reader_pass(packed_images, training())},
          {"packed pixels, short side 256", reader_pass(decoded, training())}};
}

ordered_json rows(const std::vector<Measurement>& measurements, std::int64_t images, bool cpu_time) {
  ordered_json out = ordered_json::array();
  const Measurement &opencv = measurements[0], &files = measurements[1];
  for (const Measurement& m : measurements) {
    const double seconds = median(m.seconds);
    ordered_json row{{"name", m.name},
                     {"workers", 1},
                     {"images", images},
                     {"clock", cpu_time ? "processor" : "wall"},
                     {"seconds", seconds},
                     {"images_per_s", static_cast<double>(images) / seconds},
                     {"opencv_seconds", median(opencv.seconds)},
                     {"ratio_to_opencv", ratio(opencv, m)}};
    if (m.name.starts_with("files, ")) row["extra_seconds"] = median(m.seconds) - median(files.seconds);
    out.push_back(std::move(row));
  }
  return out;
}

/// How long it takes to copy the samples that each row made.
void add_limits(ordered_json& results, std::int64_t repeats) {
  constexpr std::int64_t copied = 64;  // samples
  std::vector<std::uint8_t> from(static_cast<std::size_t>(copied * sample.bytes()), 1), to(from.size());
  std::vector<double> seconds;
  for (std::int64_t i = -1; i < repeats; ++i) {
    from[0] = static_cast<std::uint8_t>(i);
    const double begin = now_seconds();
    std::memcpy(to.data(), from.data(), from.size());
    if (i >= 0) seconds.push_back((now_seconds() - begin) / copied);
  }
  for (ordered_json& row : results) {
    const std::int64_t images = row["images"], elements = images * sample.bytes();
    row["elements"] = elements;
    row["bytes_moved"] = 2 * elements;
    row["memcpy_seconds"] = static_cast<double>(images) * median(seconds);
  }
}

std::string loader_rates(const ordered_json& results) {
  std::string out = fmt::format("{:<42} {:>7} {:>10} {:>10} {:>7}  {}\n", "samples of 224 x 224, or as named",
                                "workers", "us each", "per s", "ratio", "ratio to");
  for (const ordered_json& r : results) {
    const bool opencv = r.contains("ratio_to_opencv");
    const bool processes = r.contains("ratio_to_processes");
    out += fmt::format("{:<42} {:>7} {:>10.1f} {:>10.0f} {:>7.2f}  {}\n", r["name"].get<std::string>(),
                       r["workers"].get<int>(), 1e6 / r["images_per_s"].get<double>(),
                       r["images_per_s"].get<double>(),
                       r[opencv      ? "ratio_to_opencv"
                         : processes ? "ratio_to_processes"
                                     : "ratio_to_memcpy"]
                           .get<double>(),
                       opencv      ? "cv::imdecode + cv::resize"
                       : processes ? "as many processes"
                                   : "memcpy");
  }
  return out + "ratio: the other's seconds over these\n";
}

}  // namespace

std::string bench_loader_command(const BenchLoaderArguments& arguments) {
  const ScratchFolder scratch;
  std::vector<std::string> folders = arguments.data;
  if (folders.empty()) {
    folders.push_back(scratch.path("generated"));
    write_photographs(folders[0], generated);
  }
  const auto images = photographs(folders, arguments.images);
  std::vector<Measurement> measurements = reading(images, scratch);
  measure(measurements, arguments.repeats, arguments.cpu_time);
  ordered_json results = rows(measurements, images->size(), arguments.cpu_time);
  DataOptions data;
  data.augment = training().augment;
  for (const int workers : arguments.workers)
    if (workers > 0) results.push_back(measure_workers(images, data, sample, workers, arguments.repeats));
  add_limits(results, arguments.repeats);
  results.push_back(measure_cifar_batch(arguments.repeats));
  return arguments.json ? json_text(results, 2) + "\n" : loader_rates(results);
}

}  // namespace lpsgd
