// libFuzzer: an image reader takes or refuses any file, without touching memory outside, in every way that
// options ask for; what it takes is the same the second time.
//   input: options draw file...     bit 0 of `options`: one channel; bits 1-2: the crop; bit 3: interpolation
//                                   area; bit 4: colours; bit 5: evaluation; bit 6: a check of the whole file
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "core/error.h"
#include "data/image_reader.h"

namespace {

using namespace lpsgd;

ImageTransform transform_of(unsigned options) {
  ImageTransform out;
  out.augment.mirror = true;
  const unsigned crop = options >> 1 & 3;
  if (crop == 1) out.augment.crop.kind = CropOptions::Kind::random_resized;
  if (crop == 2) out.augment.crop = {.kind = CropOptions::Kind::side_ratio, .ratio = {0.1, 1}};
  if (crop == 3)
    out.evaluate.resize = 40;
  else
    out.evaluate.side_ratio = 0.875;
  if (options & 8) out.interpolation = Interpolation::area;
  if (options & 16) {
    out.augment.jitter = {.brightness = 1, .contrast = 1};
    if ((options & 1) == 0) {
      out.augment.jitter.saturation = 1;
      out.augment.jitter.hue = 0.5;
      out.augment.pca = 1;
    }
  }
  return out;
}

void expect(bool holds) {
  if (!holds) std::abort();
}

/// The sample, or nothing if the file was refused.
std::vector<std::uint8_t> read(ImageReader& reader, const ImageShape& shape, const StoredImage& image,
                               unsigned options, unsigned draw) {
  std::vector<std::uint8_t> out(static_cast<std::size_t>(shape.bytes()));
  PhiloxSequence random(1, RandomUse::augmentation, draw, 0);
  try {
    if (options & 64) {
      const ImageShape whole = reader.check(image, "fuzz");
      expect(whole.height >= 1 && whole.width >= 1);
    }
    reader.read(image, "fuzz", options & 32 ? nullptr : &random, out.data());
  } catch (const FileError& error) {
    expect(std::string_view(error.what()).starts_with("fuzz: "));
    out.clear();
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const unsigned options = data[0], draw = data[1];
  // A block of exactly the size: AddressSanitizer sees what lies beside it.
  const std::vector<std::uint8_t> file(data + 2, data + size);
  const ImageShape shape{32, 24, options & 1 ? 1 : 3};
  ImageReader reader(transform_of(options), shape);
  const StoredImage image{file, std::nullopt};
  const std::vector<std::uint8_t> first = read(reader, shape, image, options, draw);
  expect(read(reader, shape, image, options, draw) == first);
  return 0;
}
