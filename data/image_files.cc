#include "data/image_files.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <string_view>

#include "core/error.h"
#include "data/file_errors.h"
#include "data/sample_limit.h"

namespace lpsgd {

namespace {

namespace fs = std::filesystem;

/// What is read into memory at once; no image of the allowed number of pixels is as large.
constexpr std::uint64_t most_image_bytes = std::uint64_t{512} << 20;

constexpr std::array<std::string_view, 11> extensions{".jpg",  ".jpeg", ".png", ".bmp", ".webp", ".tif",
                                                      ".tiff", ".pbm",  ".pgm", ".ppm", ".pnm"};

bool is_hidden(const fs::path& path) {
  return path.filename().string().starts_with('.');
}

/// Calls `body` with every entry of a folder. Its errors name the folder.
template <class F>
void for_entries(const std::string& folder, F body) {
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) body(*entry);
  if (error) throw FileError(fmt::format("{}: cannot be read: {}", folder, error.message()));
}

void find_images(const std::string& folder, bool nested, std::vector<std::string>& out) {
  for_entries(folder, [&](const fs::directory_entry& entry) {
    std::error_code ignored;
    // A link to a folder is not followed: it might lead in circles.
    const bool is_folder = entry.is_directory(ignored) && !entry.is_symlink(ignored);
    if (is_folder && nested && !is_hidden(entry.path()))
      find_images(entry.path().string(), nested, out);
    else if (!is_folder && is_image_name(entry.path().string()))
      out.push_back(entry.path().string());
  });
}

}  // namespace

ImageFiles::ImageFiles(std::vector<ImageFile> images, std::vector<std::string> class_names,
                       std::vector<InputFile> archives)
    : images_(std::move(images)), class_names_(std::move(class_names)), archives_(std::move(archives)) {
  require(!images_.empty(), "a data set has an image");
}

StoredImage ImageFiles::image(std::int64_t i, std::vector<std::uint8_t>& file) const {
  const ImageFile& image = images_[static_cast<std::size_t>(i)];
  if (image.archive < 0) {
    read_whole_file(image.name, most_image_bytes, file);
  } else {
    if (image.size > most_image_bytes)
      throw FileError(fmt::format("{}: too large: {} bytes, expected {} or fewer", image.name, image.size,
                                  most_image_bytes));
    file.resize(image.size);
    archives_[static_cast<std::size_t>(image.archive)].read(image.offset, file);
  }
  return {file, std::nullopt};
}

void keep_samples(std::vector<ImageFile>& images, std::int64_t limit) {
  const auto size = static_cast<std::int64_t>(images.size());
  for (std::int64_t i = 0; i < limit; ++i)
    std::swap(images[static_cast<std::size_t>(i)],
              images[static_cast<std::size_t>(evenly_spaced(i, limit, size))]);
  images.resize(static_cast<std::size_t>(limit));
}

bool is_image_name(const std::string& path) {
  std::string extension = fs::path(path).extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return !is_hidden(path) && std::find(extensions.begin(), extensions.end(), extension) != extensions.end();
}

std::vector<std::string> subfolders(const std::string& folder) {
  std::vector<std::string> names;
  for_entries(folder, [&](const fs::directory_entry& entry) {
    if (is_hidden(entry.path())) return;
    std::error_code error;
    const bool is_folder = entry.is_directory(error);
    if (error)  // of a link to a disk that is not there, for example
      throw FileError(fmt::format("{}: cannot be read: {}", entry.path().string(), error.message()));
    if (is_folder) names.push_back(entry.path().filename().string());
  });
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> images_in(const std::string& folder, bool nested) {
  std::vector<std::string> paths;
  find_images(folder, nested, paths);
  if (paths.empty())
    throw FileError(
        fmt::format("{}: holds no image (a file .jpg, .png, ...: docs/data.md lists them)", folder));
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<ImageFile> images_of_classes(const std::string& folder, const std::vector<std::string>& classes) {
  std::vector<ImageFile> images;
  FileErrors errors;
  for (std::size_t c = 0; c < classes.size(); ++c)
    errors.attempt([&] {
      for (std::string& path : images_in((fs::path(folder) / classes[c]).string()))
        images.push_back({.name = std::move(path), .label = static_cast<std::int32_t>(c)});
    });
  errors.throw_if_any();
  return images;
}

void check_same_classes(const std::string& train, const std::vector<std::string>& train_classes,
                        const std::string& test, const std::vector<std::string>& test_classes) {
  FileErrors errors;
  const auto add_missing = [&](const std::string& here, const std::vector<std::string>& classes,
                               const std::string& there, const std::vector<std::string>& others) {
    for (const std::string& name : others)
      if (!std::binary_search(classes.begin(), classes.end(), name))
        errors.add(fmt::format("{}: has no class '{}', which {} has", here, name, there));
  };
  add_missing(test, test_classes, train, train_classes);
  add_missing(train, train_classes, test, test_classes);
  errors.throw_if_any();
}

}  // namespace lpsgd
