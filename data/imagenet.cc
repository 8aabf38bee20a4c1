// ImageNet (ILSVRC 2012): folders of images, or the original archives, which are read in place.
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/error.h"
#include "core/paths.h"
#include "data/datasets.h"
#include "data/file_errors.h"
#include "data/image_files.h"
#include "data/imagenet_labels.h"
#include "data/sample_limit.h"
#include "data/tar.h"

namespace lpsgd {

namespace {

namespace fs = std::filesystem;

constexpr const char* train_archive = "ILSVRC2012_img_train.tar";
constexpr const char* val_archive = "ILSVRC2012_img_val.tar";

/// A split's images, unpacked in a folder or in an archive.
struct Source {
  std::string path;
  bool is_archive = false;
};

/// `given`, or the folder `name`, or the archive; in `root`.
Source find_source(const fs::path& root, const std::string& given, const char* name, const char* archive) {
  const fs::path folder = root / (given.empty() ? name : given);
  if (is_folder(folder)) return {folder.string(), false};
  if (given.empty() && path_exists(root / archive)) return {(root / archive).string(), true};
  throw FileError(given.empty()
                      ? fmt::format("{}: holds neither the folder {} nor {}", root.string(), name, archive)
                      : fmt::format("{}: no such folder", folder.string()));
}

struct ClassArchive {
  std::string wnid;
  TarMember member;
};

/// The archives of the classes in the training archive, sorted by WNID.
std::vector<ClassArchive> class_archives(const InputFile& file) {
  std::vector<ClassArchive> out;
  FileErrors errors;
  for (TarMember& member : read_tar_index(file)) {
    const fs::path name = member.name;
    if (name.extension() != ".tar" || !is_wnid(name.stem().string()))
      errors.add(fmt::format("{}: holds '{}', expected an archive of each class, such as n01440764.tar",
                             file.path(), member.name));
    else
      out.push_back({name.stem().string(), std::move(member)});
  }
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.wnid < b.wnid; });
  for (std::size_t i = 1; i < out.size(); ++i)
    if (out[i].wnid == out[i - 1].wnid)
      errors.add(fmt::format("{}: holds two archives of one class: '{}' and '{}'", file.path(),
                             out[i - 1].member.name, out[i].member.name));
  errors.throw_if_any();
  if (out.empty()) throw FileError(fmt::format("{}: holds no archive of a class", file.path()));
  return out;
}

std::vector<std::string> wnids_in(const Source& train) {
  std::vector<std::string> out;
  if (train.is_archive) {
    for (ClassArchive& archive : class_archives(InputFile(train.path)))
      out.push_back(std::move(archive.wnid));
    return out;
  }
  out = subfolders(train.path);
  FileErrors errors;
  for (const std::string& name : out)
    if (!is_wnid(name))
      errors.add(fmt::format("{}: has the folder '{}', expected one of each class, such as n01440764",
                             train.path, name));
  errors.throw_if_any();
  if (out.empty())
    throw FileError(
        fmt::format("{}: holds no folder; expected one of each class, such as n01440764", train.path));
  return out;
}

/// Whether the member or a folder that it lies in is hidden, as find_images() passes over them on disk.
bool is_hidden_member(const fs::path& member) {
  return std::any_of(member.begin(), member.end(),
                     [](const fs::path& part) { return part != "." && part.string().starts_with('.'); });
}

/// The images of an archive's members, with one label.
void add_members(std::vector<TarMember> members, const std::string& archive, std::int32_t label,
                 std::vector<ImageFile>& out) {
  std::sort(members.begin(), members.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  const std::size_t before = out.size();
  for (const TarMember& member : members)
    if (is_image_name(member.name) && !is_hidden_member(member.name))
      out.push_back({fmt::format("{}/{}", archive, member.name), label, 0, member.offset, member.size});
  if (out.size() == before) throw FileError(fmt::format("{}: holds no image", archive));
}

std::vector<ImageFile> training_archive(const InputFile& file) {
  std::vector<ImageFile> images;
  std::int32_t label = 0;
  FileErrors errors;
  for (const ClassArchive& archive : class_archives(file)) {
    const TarMember& member = archive.member;
    const std::string name = fmt::format("{}/{}", file.path(), member.name);
    errors.attempt(
        [&] { add_members(read_tar_index(file, member.offset, member.size, name), name, label, images); });
    ++label;
  }
  errors.throw_if_any();
  return images;
}

/// Gives each image the label that the list has for its name.
void label_by_list(std::vector<ImageFile>& images, const std::vector<std::string>& classes,
                   const std::string& where, const std::string& root) {
  const ValidationLabels labels = read_validation_labels(root);
  FileErrors errors;
  if (labels.wnids.size() != images.size())
    errors.add(fmt::format("{}: labels of {} images, but {} holds {}", labels.path, labels.wnids.size(),
                           where, images.size()));
  std::set<std::string> unknown;  // classes that have been named
  for (ImageFile& image : images) {
    const auto found = labels.wnids.find(fs::path(image.name).stem().string());
    if (found == labels.wnids.end()) {
      errors.add(fmt::format("{}: {} has no label of it", image.name, labels.path));
      continue;
    }
    const auto at = std::lower_bound(classes.begin(), classes.end(), found->second);
    if (at != classes.end() && *at == found->second)
      image.label = static_cast<std::int32_t>(at - classes.begin());
    else if (unknown.insert(found->second).second)
      errors.add(fmt::format("{}: class {} of {} is none of the training images' {} classes", labels.path,
                             found->second, image.name, classes.size()));
  }
  errors.throw_if_any();
}

std::vector<ImageFile> validation_images(const Source& val, const std::vector<std::string>& classes,
                                         const std::string& train, const std::string& root,
                                         std::vector<InputFile>& archives) {
  std::vector<ImageFile> images;
  if (val.is_archive) {
    archives.emplace_back(val.path);
    add_members(read_tar_index(archives.back()), val.path, 0, images);
  } else if (const std::vector<std::string> folders = subfolders(val.path); !folders.empty()) {
    FileErrors errors;
    errors.attempt([&] { check_same_classes(train, classes, val.path, folders); });
    errors.attempt([&] { images = images_of_classes(val.path, folders); });
    errors.throw_if_any();
    return images;
  } else {
    for (std::string& path : images_in(val.path)) images.push_back({.name = std::move(path)});
  }
  label_by_list(images, classes, val.path, root);
  // As in a folder of each class, so that a part of the samples keeps every class's share.
  std::ranges::stable_sort(images, {}, &ImageFile::label);
  return images;
}

}  // namespace

std::shared_ptr<const Dataset> open_imagenet(const DataOptions& options, Split split) {
  if (options.root.empty())
    throw ConfigError("data.root: missing: the folder of ImageNet's images or archives");
  // Both splits look for both sources, so that a missing one is found before training starts.
  Source train, val;
  FileErrors errors;
  errors.attempt([&] { train = find_source(options.root, options.train_folder, "train", train_archive); });
  errors.attempt([&] { val = find_source(options.root, options.test_folder, "val", val_archive); });
  errors.throw_if_any();
  const std::vector<std::string> classes = wnids_in(train);
  std::vector<InputFile> archives;
  std::vector<ImageFile> images;
  if (split == Split::test) {
    images = validation_images(val, classes, train.path, options.root, archives);
  } else if (train.is_archive) {
    archives.emplace_back(train.path);
    images = training_archive(archives.back());
  } else {
    images = images_of_classes(train.path, classes);
  }
  const std::string& where = split == Split::test ? val.path : train.path;
  keep_samples(images, sample_limit(options, split, static_cast<std::int64_t>(images.size()), where));
  return std::make_shared<ImageFiles>(std::move(images), classes, std::move(archives));
}

}  // namespace lpsgd
