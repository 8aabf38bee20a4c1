#include "trainer/bench/photographs.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/philox.h"
#include "data/image_files.h"
#include "data/jpeg_encoder.h"
#include "data/shards.h"

namespace lpsgd {

namespace {

namespace fs = std::filesystem;

constexpr int width = 500, height = 375, quality = 90;

/// Waves of random direction, length and colour, and a little noise: as hard to encode as a photograph.
std::vector<std::uint8_t> picture(std::uint32_t number) {
  constexpr int waves = 6;
  PhiloxSequence random(1, RandomUse::dataset, number);
  float across[waves], down[waves], phase[waves], colour[waves][3];
  for (int i = 0; i < waves; ++i) {
    across[i] = (random.uniform() - 0.5f) * 0.4f;
    down[i] = (random.uniform() - 0.5f) * 0.4f;
    phase[i] = 6.3f * random.uniform();
    for (float& c : colour[i]) c = 25 * random.uniform();
  }
  std::vector<std::uint8_t> out;
  out.reserve(std::size_t{width} * height * 3);
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x) {
      float rgb[3] = {128, 128, 128};
      for (int i = 0; i < waves; ++i) {
        const float wave =
            std::sin(across[i] * static_cast<float>(x) + down[i] * static_cast<float>(y) + phase[i]);
        for (int c = 0; c < 3; ++c) rgb[c] += colour[i][c] * wave;
      }
      const float noise = 24 * (random.uniform() - 0.5f);
      for (const float value : rgb)
        out.push_back(static_cast<std::uint8_t>(std::clamp(value + noise, 0.0f, 255.0f)));
    }
  return out;
}

class Repeated final : public ImageDataset {
 public:
  Repeated(std::shared_ptr<const ImageDataset> images, std::int64_t size)
      : images_(std::move(images)), size_(size) {}
  std::int64_t size() const override { return size_; }
  std::int64_t classes() const override { return images_->classes(); }
  std::string name(std::int64_t i) const override { return images_->name(i % images_->size()); }
  std::int32_t label(std::int64_t i) const override { return images_->label(i % images_->size()); }
  StoredImage image(std::int64_t i, std::vector<std::uint8_t>& file) const override {
    return images_->image(i % images_->size(), file);
  }

 private:
  std::shared_ptr<const ImageDataset> images_;
  std::int64_t size_;
};

}  // namespace

ScratchFolder::ScratchFolder() {
  std::error_code error;
  const fs::path parent = fs::temp_directory_path(error);
  if (error) throw FileError(fmt::format("the folder for temporary files (TMPDIR): {}", error.message()));
  path_ = (parent / "lpsgd-bench-XXXXXX").string();
  if (!::mkdtemp(path_.data()))
    throw FileError(fmt::format("{}: cannot be made: {}", path_, std::generic_category().message(errno)));
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void write_photographs(const std::string& folder, int count) {
  std::error_code error;
  if (!fs::create_directory(folder, error) && error)
    throw FileError(fmt::format("{}: cannot be made: {}", folder, error.message()));
  std::vector<std::uint8_t> file;
  for (int i = 0; i < count; ++i) {
    const std::vector<std::uint8_t> pixels = picture(static_cast<std::uint32_t>(i));
    encode_jpeg({height, width, 3, 3 * width, pixels.data()}, quality, file);
    const std::span<const std::byte> bytes = std::as_bytes(std::span(file));
    write_file(fmt::format("{}/{:03}.jpg", folder, i), {&bytes, 1});
  }
}

std::shared_ptr<const ImageDataset> photographs(const std::vector<std::string>& folders, std::int64_t most) {
  std::vector<ImageFile> files;
  for (const std::string& folder : folders)
    for (std::string& path : images_in(folder)) files.push_back({.name = std::move(path)});
  if (static_cast<std::int64_t>(files.size()) > most) keep_samples(files, most);
  return std::make_shared<ImageFiles>(std::move(files), std::vector<std::string>{"photograph"});
}

std::shared_ptr<const ImageDataset> packed(const ImageDataset& images, const PackOptions& options,
                                           const std::string& path) {
  ShardWriter writer(path, {.dataset = "images", .split = Split::train, .classes = 1});
  ImagePacker packer(options);
  std::vector<std::uint8_t> file, bytes;
  for (std::int64_t i = 0; i < images.size(); ++i) {
    const std::string name = images.name(i);
    writer.add(packer.pack(images.image(i, file), name, bytes), 0, name);
  }
  writer.finish();
  DataOptions data;
  data.dataset = "images";
  data.shards = path;
  return open_shards(data, Split::train);
}

std::shared_ptr<const ImageDataset> repeated(std::shared_ptr<const ImageDataset> images, std::int64_t size) {
  return std::make_shared<Repeated>(std::move(images), size);
}

}  // namespace lpsgd
