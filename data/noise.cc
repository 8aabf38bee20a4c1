// The data set `noise`: images of any size whose pixels are uniform random bytes. The label of sample i is i
// mod the number of classes, so there is nothing to learn. It serves to measure time and memory without real
// images. Sample i of a split is a pure function of i and the split.
#include "core/buffer.h"
#include "core/error.h"
#include "core/philox.h"
#include "data/datasets.h"

namespace lpsgd {

namespace {

constexpr std::int64_t default_train = 512, default_test = 128;

class Noise final : public ImageDataset {
 public:
  Noise(const DataOptions& options, std::int64_t size, Split split)
      : shape_{options.image[0], options.image[1], options.image[2]},
        split_(split),
        classes_(options.classes),
        size_(size),
        images_(static_cast<std::size_t>(size_ * shape_.bytes())) {
    for (std::int64_t i = 0; i < size_; ++i) {
      PhiloxSequence random(1, RandomUse::dataset, static_cast<std::uint32_t>(i),
                            split == Split::train ? 0u : 1u);
      std::uint8_t* out = images_.data() + i * shape_.bytes();
      std::uint32_t word = 0;
      for (std::int64_t p = 0; p < shape_.bytes(); ++p, word >>= 8) {
        if (p % 4 == 0) word = random.next();
        out[p] = static_cast<std::uint8_t>(word);
      }
    }
  }
  std::int64_t size() const override { return size_; }
  std::int64_t classes() const override { return classes_; }
  std::string name(std::int64_t i) const override {
    return fmt::format("{} image {} of data set noise", split_ == Split::train ? "training" : "test", i);
  }
  std::optional<ImageShape> fixed_shape() const override { return shape_; }
  StoredImage image(std::int64_t i, std::vector<std::uint8_t>&) const override {
    const auto bytes = static_cast<std::size_t>(shape_.bytes());
    return {images_.view().subspan(static_cast<std::size_t>(i) * bytes, bytes), shape_};
  }
  std::int32_t label(std::int64_t i) const override { return static_cast<std::int32_t>(i % classes_); }

 private:
  ImageShape shape_;
  Split split_;
  std::int64_t classes_, size_;
  Buffer<std::uint8_t> images_;  // (N, H, W, C)
};

}  // namespace

std::shared_ptr<const Dataset> open_noise(const DataOptions& options, Split split) {
  std::int64_t size = split == Split::train ? options.train_samples : options.test_samples;
  if (size == 0) size = split == Split::train ? default_train : default_test;
  if (options.image.size() != 3)
    throw ConfigError(
        fmt::format("data.image: {} numbers; expected [height, width, channels]", options.image.size()));
  if (options.image[0] * options.image[1] * options.image[2] > (std::int64_t{1} << 40) / size)
    throw ConfigError(fmt::format("data.image: {} samples of {} x {} x {} are more than a tebibyte", size,
                                  options.image[0], options.image[1], options.image[2]));
  return std::make_shared<Noise>(options, size, split);
}

}  // namespace lpsgd
