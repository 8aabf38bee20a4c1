// MNIST and Fashion-MNIST, which have the same files.
#include <fmt/core.h>

#include <array>
#include <filesystem>
#include <string>

#include "core/error.h"
#include "core/paths.h"
#include "data/datasets.h"
#include "data/file_errors.h"
#include "data/idx.h"
#include "data/sample_limit.h"

namespace lpsgd {

namespace {

constexpr std::int64_t side = 28, pixels = side * side;
constexpr int classes_ = 10;

class Mnist final : public ImageDataset {
 public:
  Mnist(std::string path, Buffer<std::uint8_t> images, Buffer<std::uint8_t> labels, std::int64_t size)
      : path_(std::move(path)), images_(std::move(images)), labels_(std::move(labels)), size_(size) {}
  std::int64_t size() const override { return size_; }
  std::int64_t classes() const override { return classes_; }
  std::string name(std::int64_t i) const override { return fmt::format("image {} of {}", i, path_); }
  std::int32_t label(std::int64_t i) const override { return labels_[static_cast<std::size_t>(i)]; }
  std::optional<ImageShape> fixed_shape() const override { return ImageShape{side, side, 1}; }
  StoredImage image(std::int64_t i, std::vector<std::uint8_t>&) const override {
    return {images_.view().subspan(static_cast<std::size_t>(i * pixels), pixels), fixed_shape()};
  }

 private:
  std::string path_;
  Buffer<std::uint8_t> images_;  // (N, 28, 28, 1)
  Buffer<std::uint8_t> labels_;
  std::int64_t size_;
};

/// The file, plain or with the suffix .gz.
std::string find_file(const std::string& root, const std::string& name) {
  const std::string plain = (std::filesystem::path(root) / name).string();
  for (const std::string& path : {plain, plain + ".gz"})
    if (path_exists(path)) return path;
  throw FileError(fmt::format(
      "{}: missing, and so is {}.gz (data.root must hold the original files train-images-idx3-ubyte, "
      "train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, each plain or as .gz)",
      plain, name));
}

}  // namespace

std::shared_ptr<const Dataset> open_mnist(const DataOptions& options, Split split) {
  if (options.root.empty())
    throw ConfigError("data.root: missing: the folder of MNIST's or Fashion-MNIST's original files");
  // Both splits look for all four files, so that a missing one is found before training starts.
  std::array<std::string, 4> paths;
  FileErrors errors;
  for (std::size_t i = 0; i < 4; ++i)
    errors.attempt([&] {
      paths[i] = find_file(options.root, fmt::format("{}-{}-ubyte", i < 2 ? "train" : "t10k",
                                                     i % 2 ? "labels-idx1" : "images-idx3"));
    });
  errors.throw_if_any();
  const bool is_train = split == Split::train;
  const std::string &image_path = paths[is_train ? 0 : 2], &label_path = paths[is_train ? 1 : 3];
  Buffer<std::uint8_t> images, labels;
  errors.attempt([&] { images = read_idx(image_path, std::array<std::int64_t, 2>{side, side}, "images"); });
  errors.attempt([&] { labels = read_idx(label_path, {}, "labels"); });
  errors.throw_if_any();
  const auto size = static_cast<std::int64_t>(images.size()) / pixels;
  if (static_cast<std::int64_t>(labels.size()) != size)
    throw FileError(
        fmt::format("{}: {} labels, but {} has {} images", label_path, labels.size(), image_path, size));
  for (std::size_t i = 0; i < labels.size(); ++i)
    if (labels[i] >= classes_)
      throw FileError(fmt::format("{}: label {} (from 0) is {}, expected 0 to 9", label_path, i, labels[i]));
  return std::make_shared<Mnist>(image_path, std::move(images), std::move(labels),
                                 sample_limit(options, split, size, options.root));
}

}  // namespace lpsgd
