#include <fmt/core.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "core/buffer.h"
#include "core/error.h"
#include "core/file.h"
#include "data/datasets.h"

namespace lpsgd {

namespace {

constexpr std::int64_t side = 32, plane = side * side, pixels = 3 * plane, record = 1 + pixels;
constexpr std::int64_t original_records = 10000;  // in each of the six files
constexpr int classes_ = 10;

/// A file, and how many of its records are used.
struct File {
  std::string path;
  std::int64_t records;
};

class Cifar10 final : public ImageDataset {
 public:
  Cifar10(std::vector<File> files, Buffer<std::uint8_t> images, std::vector<std::uint8_t> labels)
      : files_(std::move(files)), images_(std::move(images)), labels_(std::move(labels)) {}
  std::int64_t size() const override { return static_cast<std::int64_t>(labels_.size()); }
  std::int64_t classes() const override { return classes_; }
  std::string name(std::int64_t i) const override {
    std::size_t f = 0;
    for (; i >= files_[f].records; ++f) i -= files_[f].records;
    return fmt::format("record {} of {}", i, files_[f].path);
  }
  std::int32_t label(std::int64_t i) const override { return labels_[static_cast<std::size_t>(i)]; }
  std::optional<ImageShape> fixed_shape() const override { return ImageShape{side, side, 3}; }
  StoredImage image(std::int64_t i, std::vector<std::uint8_t>&) const override {
    return {images_.view().subspan(static_cast<std::size_t>(i * pixels), pixels), fixed_shape()};
  }

 private:
  std::vector<File> files_;
  Buffer<std::uint8_t> images_;  // (N, 32, 32, 3)
  std::vector<std::uint8_t> labels_;
};

std::int64_t records_in(const std::string& path) {
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error)
    throw FileError(fmt::format(
        "{}: cannot be read: {} (data.root must hold CIFAR-10's original binary files data_batch_1.bin to "
        "data_batch_5.bin and test_batch.bin)",
        path, error.message()));
  if (bytes == 0 || bytes % record != 0)
    throw FileError(fmt::format(
        "{}: truncated or no CIFAR-10 file: {} bytes, not a whole number of records of {} (expected {})",
        path, bytes, record, original_records * record));
  return static_cast<std::int64_t>(bytes / record);
}

void read_records(const std::string& path, std::int64_t records, std::uint8_t* labels, std::uint8_t* images) {
  const std::string text = read_file(path);
  if (static_cast<std::int64_t>(text.size()) < records * record)
    throw FileError(fmt::format("{}: became shorter while it was read: {} bytes, expected {}", path,
                                text.size(), records * record));
  for (std::int64_t i = 0; i < records; ++i) {
    const char* in = text.data() + i * record;
    labels[i] = static_cast<std::uint8_t>(in[0]);
    if (labels[i] >= classes_)
      throw FileError(
          fmt::format("{}: record {} (from 0) has label {}, expected 0 to 9", path, i, labels[i]));
    std::uint8_t* out = images + i * pixels;
    for (std::int64_t p = 0; p < plane; ++p) {
      for (std::int64_t c = 0; c < 3; ++c) out[3 * p + c] = static_cast<std::uint8_t>(in[1 + c * plane + p]);
    }
  }
}

}  // namespace

std::shared_ptr<const Dataset> open_cifar10(const DataOptions& options, Split split) {
  if (options.root.empty())
    throw ConfigError("data.root: missing: the folder of CIFAR-10's original binary files");
  // Both splits check all six files, so that a missing one is found before training starts.
  std::vector<File> train, test;
  for (int i = 1; i <= 6; ++i) {
    const std::string name = i <= 5 ? fmt::format("data_batch_{}.bin", i) : "test_batch.bin";
    const std::string path = (std::filesystem::path(options.root) / name).string();
    (i <= 5 ? train : test).push_back({path, records_in(path)});
  }
  std::vector<File>& files = split == Split::train ? train : test;
  std::int64_t size = 0;
  for (const File& file : files) size += file.records;

  const std::int64_t wanted = split == Split::train ? options.train_samples : options.test_samples;
  if (wanted > size)
    throw ConfigError(fmt::format("data.{}: {} wanted, but {} holds {}",
                                  split == Split::train ? "train_samples" : "test_samples", wanted,
                                  options.root, size));
  if (wanted > 0) size = wanted;

  Buffer<std::uint8_t> images(static_cast<std::size_t>(size * pixels));
  std::vector<std::uint8_t> labels(static_cast<std::size_t>(size));
  std::int64_t done = 0;
  for (File& file : files) {
    file.records = std::min(file.records, size - done);
    if (file.records > 0)
      read_records(file.path, file.records, labels.data() + done, images.data() + done * pixels);
    done += file.records;
  }
  return std::make_shared<Cifar10>(std::move(files), std::move(images), std::move(labels));
}

}  // namespace lpsgd
