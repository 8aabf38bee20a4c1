// CIFAR-10 and CIFAR-100, whose files differ in their names and in the labels of a record.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>

#include "core/buffer.h"
#include "core/error.h"
#include "data/datasets.h"
#include "data/file_errors.h"
#include "data/input_file.h"
#include "data/sample_limit.h"

namespace lpsgd {

namespace {

constexpr std::int64_t side = 32, plane = side * side, pixels = 3 * plane;

/// One of the two data sets.
struct Version {
  const char* title;
  std::vector<const char*> train, test;      // the names of the files
  const char* files;                         // for messages
  std::int64_t train_records, test_records;  // of an original file
  std::vector<int> classes;                  // of each label of a record; the last one is the sample's label
  std::int64_t record() const { return static_cast<std::int64_t>(classes.size()) + pixels; }
};

/// A file, and how many of its records are used.
struct File {
  std::string path;
  std::int64_t records;
};

class Cifar final : public ImageDataset {
 public:
  Cifar(int classes, std::vector<File> files, Buffer<std::uint8_t> images, std::vector<std::uint8_t> labels)
      : classes_(classes), files_(std::move(files)), images_(std::move(images)), labels_(std::move(labels)) {}
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
  int classes_;
  std::vector<File> files_;
  Buffer<std::uint8_t> images_;  // (N, 32, 32, 3)
  std::vector<std::uint8_t> labels_;
};

/// At most as many records as the original file has; there are smaller sets in its format.
std::int64_t records_in(const Version& version, const std::string& path, std::int64_t original_records) {
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error)
    throw FileError(fmt::format("{}: cannot be read: {} (data.root must hold {}'s original binary files {})",
                                path, error.message(), version.title, version.files));
  const auto record = static_cast<std::uintmax_t>(version.record());
  const auto expected = static_cast<std::uintmax_t>(original_records) * record;
  if (bytes == 0 || bytes % record != 0)
    throw FileError(fmt::format(
        "{}: truncated or no {} file: {} bytes, not a whole number of records of {} (expected {})", path,
        version.title, bytes, record, expected));
  if (bytes > expected)
    throw FileError(fmt::format("{}: too large: {} bytes, expected {}", path, bytes, expected));
  return static_cast<std::int64_t>(bytes / record);
}

/// If any file is as large as the original, all must be: a shorter one has been cut at the end of a record.
void check_records(const Version& version, const std::vector<File>& train, const std::vector<File>& test,
                   FileErrors& errors) {
  const auto check = [&](const std::vector<File>& files, std::int64_t original, const std::string& whole) {
    for (const File& file : files)
      if (file.records != original)
        errors.add(fmt::format("{}: truncated: {} bytes, expected {} ({} records), as {} is a file of {}",
                               file.path, file.records * version.record(), original * version.record(),
                               original, whole, version.title));
  };
  const auto whole_file = [](const std::vector<File>& files, std::int64_t original) {
    const auto found = std::ranges::find(files, original, &File::records);
    return found == files.end() ? "" : found->path;
  };
  std::string whole = whole_file(train, version.train_records);
  if (whole.empty()) whole = whole_file(test, version.test_records);
  if (whole.empty()) return;
  check(train, version.train_records, whole);
  check(test, version.test_records, whole);
}

void read_records(const Version& version, const std::string& path, std::int64_t records, std::uint8_t* labels,
                  std::uint8_t* images) {
  const auto record = version.record();
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(records * record));
  InputFile(path).read(0, bytes);
  for (std::int64_t i = 0; i < records; ++i) {
    const std::uint8_t* in = bytes.data() + i * record;
    for (const int classes : version.classes) {
      labels[i] = *in++;
      if (labels[i] >= classes)
        throw FileError(fmt::format("{}: record {} (from 0) has label {}, expected 0 to {}", path, i,
                                    labels[i], classes - 1));
    }
    std::uint8_t* out = images + i * pixels;
    for (std::int64_t p = 0; p < plane; ++p) {
      for (std::int64_t c = 0; c < 3; ++c) out[3 * p + c] = in[c * plane + p];
    }
  }
}

std::shared_ptr<const Dataset> open_cifar(const Version& version, const DataOptions& options, Split split) {
  if (options.root.empty())
    throw ConfigError(
        fmt::format("data.root: missing: the folder of {}'s original binary files", version.title));
  // Both splits check all files, so that a missing one is found before training starts.
  FileErrors errors;
  const auto files_of = [&](const std::vector<const char*>& names, std::int64_t original) {
    std::vector<File> files;
    for (const char* name : names) {
      const std::string path = (std::filesystem::path(options.root) / name).string();
      errors.attempt([&] { files.push_back({path, records_in(version, path, original)}); });
    }
    return files;
  };
  std::vector<File> train = files_of(version.train, version.train_records);
  std::vector<File> test = files_of(version.test, version.test_records);
  check_records(version, train, test, errors);
  errors.throw_if_any();
  std::vector<File>& files = split == Split::train ? train : test;
  std::int64_t available = 0;
  for (const File& file : files) available += file.records;
  const std::int64_t size = sample_limit(options, split, available, options.root);
  Buffer<std::uint8_t> images(static_cast<std::size_t>(size * pixels));
  std::vector<std::uint8_t> labels(static_cast<std::size_t>(size));
  std::int64_t done = 0;
  for (File& file : files) {
    file.records = std::min(file.records, size - done);
    errors.attempt([&] {
      if (file.records > 0)
        read_records(version, file.path, file.records, labels.data() + done, images.data() + done * pixels);
    });
    done += file.records;
  }
  errors.throw_if_any();
  return std::make_shared<Cifar>(version.classes.back(), std::move(files), std::move(images),
                                 std::move(labels));
}

}  // namespace

std::shared_ptr<const Dataset> open_cifar10(const DataOptions& options, Split split) {
  return open_cifar({.title = "CIFAR-10",
                     .train = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
                               "data_batch_5.bin"},
                     .test = {"test_batch.bin"},
                     .files = "data_batch_1.bin to data_batch_5.bin and test_batch.bin",
                     .train_records = 10000,
                     .test_records = 10000,
                     .classes = {10}},
                    options, split);
}

std::shared_ptr<const Dataset> open_cifar100(const DataOptions& options, Split split) {
  return open_cifar({.title = "CIFAR-100",
                     .train = {"train.bin"},
                     .test = {"test.bin"},
                     .files = "train.bin and test.bin",
                     .train_records = 50000,
                     .test_records = 10000,
                     .classes = {20, 100}},
                    options, split);
}

}  // namespace lpsgd
