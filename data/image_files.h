// Data sets of encoded images: files of their own, or members of archives that are read in place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/input_file.h"

namespace lpsgd {

/// One image. `archive` is its index in ImageFiles' archives, and -1 for a file of its own.
struct ImageFile {
  std::string name;  // the path, or for messages the path of the archive followed by the member's name
  std::int32_t label = 0;
  std::int32_t archive = -1;
  std::uint64_t offset = 0, size = 0;  // in the archive
};

class ImageFiles final : public ImageDataset {
 public:
  /// `class_names`: by label.
  ImageFiles(std::vector<ImageFile> images, std::vector<std::string> class_names,
             std::vector<InputFile> archives = {});
  std::int64_t size() const override { return static_cast<std::int64_t>(images_.size()); }
  std::int64_t classes() const override { return static_cast<std::int64_t>(class_names_.size()); }
  std::vector<std::string> class_names() const override { return class_names_; }
  std::string name(std::int64_t i) const override { return images_[static_cast<std::size_t>(i)].name; }
  std::int32_t label(std::int64_t i) const override { return images_[static_cast<std::size_t>(i)].label; }
  StoredImage image(std::int64_t i, std::vector<std::uint8_t>& file) const override;

 private:
  std::vector<ImageFile> images_;
  std::vector<std::string> class_names_;
  std::vector<InputFile> archives_;
};

/// Keeps `limit` of the images (sample_limit()), evenly spaced, so that a list sorted by class keeps all of
/// its classes.
void keep_samples(std::vector<ImageFile>& images, std::int64_t limit);

/// The names of the folders in `folder`, sorted; links to folders count, names that begin with '.' do not.
/// FileError.
std::vector<std::string> subfolders(const std::string& folder);

/// Whether a file, or a member of an archive, is taken for an image: its name without folders ends in .jpg,
/// .jpeg, .png, .bmp, .webp, .tif, .tiff, .pbm, .pgm, .ppm or .pnm, in capital or small letters, and does not
/// begin with '.'.
bool is_image_name(const std::string& path);

/// The images in `folder` (is_image_name()), sorted by path; with `nested` also those of the folders in it.
/// FileError if there is none, or if a folder cannot be read.
std::vector<std::string> images_in(const std::string& folder, bool nested = true);

/// The images of class c are those in folder/classes[c]; the last one has the largest label.
std::vector<ImageFile> images_of_classes(const std::string& folder, const std::vector<std::string>& classes);

/// FileError, which names every class that is missing, unless both lists, sorted, are the same. `train` and
/// `test` say where the classes are from.
void check_same_classes(const std::string& train, const std::vector<std::string>& train_classes,
                        const std::string& test, const std::vector<std::string>& test_classes);

}  // namespace lpsgd
