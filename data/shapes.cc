// The data set `shapes`. Each image has one of ten shapes at a random position, size and angle. The shape is
// filled with a gradient of two random colours, and the background with a gradient of two others. Random
// strokes lie behind and in front of the shape, and noise is added. The shape is lighter than the background;
// its colour, position and angle do not depend on the class. So a model that is linear in the pixels learns
// almost nothing, while a small convolutional network learns the class within a few epochs.
//
// Sample i of a split is a pure function of i and the split, whatever the seed of the run: its draws have the
// key (0, dataset) and the counter (draw/4, i, split). Pixels are computed in float32 with + - * / and
// comparisons, which IEEE 754 defines exactly, and without functions of libm. So they are the same on any
// machine.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "core/buffer.h"
#include "core/philox.h"
#include "data/datasets.h"

namespace lpsgd {

namespace {

constexpr int side = 32;
constexpr std::int64_t pixels = 3 * side * side;
constexpr std::int64_t default_train = 20000, default_test = 4000;
constexpr std::uint32_t key = 0;

struct Color {
  float c[3];
};

struct Point {
  float x, y;
};

// Signed distances (up to a corner's rounding) of the shapes of radius about 1: below 0 inside.
float disc(Point p) {
  // |p| - r to first order about the edge, without a square root: (|p|^2 - r^2) / (2 r).
  return (p.x * p.x + p.y * p.y - 0.81f) / 1.8f;
}
float box(float x, float y, float half_x, float half_y) {
  return std::max(std::fabs(x) - half_x, std::fabs(y) - half_y);
}
float ring(Point p) {
  return std::max(disc(p), -(p.x * p.x + p.y * p.y - 0.25f));
}
float half_disc(Point p) {
  const float y = p.y + 0.4f;
  return std::max((p.x * p.x + y * y - 1.0f) / 2.0f, -y);
}
float square(Point p) {
  return box(p.x, p.y, 0.75f, 0.75f);
}
float frame(Point p) {
  return std::fabs(std::max(std::fabs(p.x), std::fabs(p.y)) - 0.62f) - 0.2f;
}
float triangle(Point p) {
  const float slope = 0.8660254f * std::fabs(p.x);  // sides at 60 degrees
  return std::max(-p.y - 0.5f, slope + 0.5f * p.y - 0.5f);
}
float cross(Point p) {
  return std::min(box(p.x, p.y, 0.95f, 0.28f), box(p.x, p.y, 0.28f, 0.95f));
}
float star(Point p) {
  // A pentagram: the points that violate at most one of a pentagon's five half-planes.
  constexpr Point normals[5] = {{0.0f, -1.0f},
                                {0.9510565f, -0.3090170f},
                                {0.5877853f, 0.8090170f},
                                {-0.5877853f, 0.8090170f},
                                {-0.9510565f, -0.3090170f}};
  float first = -4.0f, second = -4.0f;
  for (const Point n : normals) {
    const float d = n.x * p.x + n.y * p.y - 0.36f;
    second = std::max(second, std::min(first, d));
    first = std::max(first, d);
  }
  return second;
}
float ell(Point p) {
  return std::max(box(p.x, p.y, 0.8f, 0.8f), std::min(p.x + 0.15f, p.y + 0.15f));
}
float bars(Point p) {
  return box(p.x, std::fabs(p.y) - 0.55f, 0.85f, 0.22f);
}

using Shape = float (*)(Point);
constexpr Shape shapes[10] = {disc, ring, half_disc, square, frame, triangle, cross, star, ell, bars};

/// The position of a shape or a stroke: its centre and size in pixels, and a rotation.
struct Placement {
  float x, y, size;
  float cosine, sine;
};

/// A rotation by any angle: the half-angle formulas of t = tan(angle / 2) for -45..45 degrees (nearly uniform
/// in the angle), then quarter turns.
void rotate(Placement& placement, PhiloxSequence& random) {
  const float t = (2.0f * random.uniform() - 1.0f) * 0.41421356f;
  placement.cosine = (1.0f - t * t) / (1.0f + t * t);
  placement.sine = 2.0f * t / (1.0f + t * t);
  for (std::uint32_t turns = random.below(4); turns > 0; --turns) {
    const float cosine = placement.cosine;
    placement.cosine = -placement.sine;
    placement.sine = cosine;
  }
}

/// Two colours and a direction between them across the image.
struct Gradient {
  Color base;
  float across[3], down[3];  // change per pixel

  Color at(int x, int y) const {
    Color out;
    for (int k = 0; k < 3; ++k)
      out.c[k] = base.c[k] + across[k] * static_cast<float>(x - side / 2) +
                 down[k] * static_cast<float>(y - side / 2);
    return out;
  }
};

Gradient gradient(Color color, PhiloxSequence& random) {
  Gradient out{color, {}, {}};
  for (int k = 0; k < 3; ++k) {
    out.across[k] = (random.uniform() - 0.5f) * 3.0f;
    out.down[k] = (random.uniform() - 0.5f) * 3.0f;
  }
  return out;
}

Color random_color(PhiloxSequence& random) {
  Color out;
  for (float& c : out.c) c = 20.0f + 215.0f * random.uniform();
  return out;
}

float brightness(Color color) {
  return color.c[0] + color.c[1] + color.c[2];
}

class Canvas {
 public:
  explicit Canvas(const Gradient& background) {
    for (int y = 0; y < side; ++y)
      for (int x = 0; x < side; ++x) {
        const Color c = background.at(x, y);
        std::copy(std::begin(c.c), std::end(c.c), at(x, y));
      }
  }

  /// Paints where `shape` is below 0; an edge's pixels get their share of the colour.
  template <class F>
  void paint(const Placement& placement, float reach, const Gradient& fill, F shape) {
    const auto clamp = [](float v) { return static_cast<int>(std::clamp(v, 0.0f, float{side})); };
    const int left = clamp(placement.x - reach), right = clamp(placement.x + reach + 1.0f);
    const int top = clamp(placement.y - reach), bottom = clamp(placement.y + reach + 1.0f);
    const float scale = 1.0f / placement.size;
    for (int y = top; y < bottom; ++y) {
      for (int x = left; x < right; ++x) {
        const float dx = (static_cast<float>(x) + 0.5f - placement.x) * scale;
        const float dy = (static_cast<float>(y) + 0.5f - placement.y) * scale;
        const Point p{placement.cosine * dx + placement.sine * dy,
                      placement.cosine * dy - placement.sine * dx};
        const float cover = std::clamp(0.5f - shape(p) * placement.size, 0.0f, 1.0f);
        if (cover == 0.0f) continue;
        const Color over = fill.at(x, y);
        float* under = at(x, y);
        for (int k = 0; k < 3; ++k) under[k] += cover * (over.c[k] - under[k]);
      }
    }
  }

  /// Adds triangular noise of up to +-`amplitude` to every value and rounds to bytes.
  void finish(float amplitude, PhiloxSequence& random, std::uint8_t* out) const {
    std::uint16_t noise[pixels];  // each the source of two bytes
    for (std::int64_t i = 0; i < pixels; i += 2) {
      const std::uint32_t word = random.next();
      noise[i] = static_cast<std::uint16_t>(word);
      noise[i + 1] = static_cast<std::uint16_t>(word >> 16);
    }
    const float scale = amplitude / 255.0f;
    for (std::int64_t i = 0; i < pixels; ++i) {
      const int sum = (noise[i] & 255) + (noise[i] >> 8);
      float v = values_[i] + scale * static_cast<float>(sum - 255);
      v = v < 0.0f ? 0.0f : v;
      v = v > 255.0f ? 255.0f : v;
      out[i] = static_cast<std::uint8_t>(static_cast<int>(v + 0.5f));
    }
  }

 private:
  float* at(int x, int y) { return values_ + 3 * (y * side + x); }
  float values_[pixels];  // (32, 32, 3)
};

void stroke(Canvas& canvas, PhiloxSequence& random) {
  Placement placement{side * random.uniform(), side * random.uniform(), 2.0f + 3.5f * random.uniform(), 1, 0};
  rotate(placement, random);
  const float half_width = (0.6f + 0.7f * random.uniform()) / placement.size;
  const Gradient fill = gradient(random_color(random), random);
  canvas.paint(placement, placement.size + 2.0f, fill,
               [&](Point p) { return box(p.x, p.y, 1.0f, half_width); });
}

void draw(std::int64_t sample, Split split, std::uint8_t* out) {
  PhiloxSequence random(key, RandomUse::dataset, static_cast<std::uint32_t>(sample),
                        split == Split::train ? 0u : 1u);
  Color behind, front;
  do {
    behind = random_color(random);
    front = random_color(random);
  } while (brightness(front) - brightness(behind) < 100.0f);

  Canvas canvas(gradient(behind, random));
  for (std::uint32_t strokes = random.below(4); strokes > 0; --strokes) stroke(canvas, random);

  Placement placement{0, 0, 7.5f + 4.5f * random.uniform(), 1, 0};
  const float room = side - 1.6f * placement.size;  // a little of the shape may leave the image
  placement.x = 0.8f * placement.size + room * random.uniform();
  placement.y = 0.8f * placement.size + room * random.uniform();
  rotate(placement, random);
  const Gradient fill = gradient(front, random);
  canvas.paint(placement, 1.3f * placement.size + 1.0f, fill, shapes[sample % 10]);

  for (std::uint32_t strokes = random.below(2); strokes > 0; --strokes) stroke(canvas, random);
  canvas.finish(6.0f + 20.0f * random.uniform(), random, out);
}

class Shapes final : public ImageDataset {
 public:
  Shapes(std::int64_t size, Split split)
      : size_(size), split_(split), images_(static_cast<std::size_t>(size * pixels)) {
    for (std::int64_t i = 0; i < size; ++i) draw(i, split, images_.data() + i * pixels);
  }
  std::int64_t size() const override { return size_; }
  std::int64_t classes() const override { return 10; }
  std::string name(std::int64_t i) const override {
    return fmt::format("{} image {} of data set shapes", split_ == Split::train ? "training" : "test", i);
  }
  std::optional<ImageShape> fixed_shape() const override { return ImageShape{side, side, 3}; }
  StoredImage image(std::int64_t i, std::vector<std::uint8_t>&) const override {
    return {images_.view().subspan(static_cast<std::size_t>(i * pixels), pixels), fixed_shape()};
  }
  std::int32_t label(std::int64_t i) const override { return static_cast<std::int32_t>(i % 10); }

 private:
  std::int64_t size_;
  Split split_;
  Buffer<std::uint8_t> images_;  // (N, 32, 32, 3)
};

}  // namespace

std::shared_ptr<const Dataset> open_shapes(const DataOptions& options, Split split) {
  std::int64_t size = split == Split::train ? options.train_samples : options.test_samples;
  if (size == 0) size = split == Split::train ? default_train : default_test;
  return std::make_shared<Shapes>(size, split);
}

}  // namespace lpsgd
