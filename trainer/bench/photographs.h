// The images that `lpsgd bench loader` reads: files from folders, or generated ones of ImageNet's usual size.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/image_packer.h"

namespace lpsgd {

/// A folder that is removed with its content at the end.
class ScratchFolder {
 public:
  ScratchFolder();  // FileError
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::string path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

/// Writes `count` JPEG files of 500 x 375 pixels, about 65 kB each, to `folder`, which is made.
void write_photographs(const std::string& folder, int count);

/// The images in the folders and those below them, evenly chosen if there are more than `most`; one class.
/// FileError.
std::shared_ptr<const ImageDataset> photographs(const std::vector<std::string>& folders, std::int64_t most);

/// The images as a shard at `path`.
std::shared_ptr<const ImageDataset> packed(const ImageDataset& images, const PackOptions& options,
                                           const std::string& path);

/// The images again and again: `size` samples.
std::shared_ptr<const ImageDataset> repeated(std::shared_ptr<const ImageDataset> images, std::int64_t size);

}  // namespace lpsgd
