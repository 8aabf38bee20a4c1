// The data set `images`: any images in a folder per class.
#include <fmt/core.h>

#include <filesystem>

#include "core/error.h"
#include "core/paths.h"
#include "data/datasets.h"
#include "data/file_errors.h"
#include "data/image_files.h"
#include "data/sample_limit.h"

namespace lpsgd {

namespace {

namespace fs = std::filesystem;

std::string test_folder(const DataOptions& options) {
  const fs::path root = options.root;
  if (!options.test_folder.empty()) return (root / options.test_folder).string();
  return (root / (is_folder(root / "val") ? "val" : "test")).string();
}

std::vector<std::string> classes_in(const std::string& folder) {
  if (!is_folder(folder))
    throw FileError(fmt::format(
        "{}: {} (data.root must hold the folders train and val or test, with a folder of images per class; "
        "data.train_folder and data.test_folder name others)",
        folder, path_exists(folder) ? "is no folder" : "no such folder"));
  std::vector<std::string> classes = subfolders(folder);
  if (classes.empty())
    throw FileError(fmt::format("{}: holds no folder; expected one folder of images per class", folder));
  return classes;
}

}  // namespace

std::shared_ptr<const Dataset> open_image_folders(const DataOptions& options, Split split) {
  if (options.root.empty())
    throw ConfigError("data.root: missing: the folder that holds train and val or test");
  const std::string train =
      (fs::path(options.root) / (options.train_folder.empty() ? "train" : options.train_folder)).string();
  std::string test;
  FileErrors errors;
  std::vector<std::string> train_classes, test_classes;
  errors.attempt([&] { train_classes = classes_in(train); });
  errors.attempt([&] {
    test = test_folder(options);
    test_classes = classes_in(test);
  });
  errors.throw_if_any();
  const bool is_train = split == Split::train;
  const std::string& folder = is_train ? train : test;
  const std::vector<std::string>& classes = is_train ? train_classes : test_classes;
  std::vector<ImageFile> images;
  errors.attempt([&] { check_same_classes(train, train_classes, test, test_classes); });
  errors.attempt([&] { images = images_of_classes(folder, classes); });
  errors.throw_if_any();
  keep_samples(images, sample_limit(options, split, static_cast<std::int64_t>(images.size()), folder));
  return std::make_shared<ImageFiles>(std::move(images), classes);
}

}  // namespace lpsgd
