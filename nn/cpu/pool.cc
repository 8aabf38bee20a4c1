// Max and average pooling in NHWC. Max pooling remembers the place of each maximum (the first among equals;
// a NaN wins), so backward adds each gradient in one place.
#include "nn/cpu/context.h"

namespace lpsgd::cpu {
namespace {

class PoolOp final : public Op {
 public:
  PoolOp(Context& context, const Binding& b, const PoolDesc& desc)
      : context_(context), b_(b), desc_(desc), in_(b.inputs[0].shape), out_(b.shape), channels_(in_[2]) {
    if (desc.kind == PoolDesc::Kind::max && b.training)
      places_ = Buffer<std::int32_t>(static_cast<std::size_t>(b.elements()));
    pixels_.resize(static_cast<std::size_t>(context.threads));
    for (WindowPixels& p : pixels_) {
      p.values.resize(static_cast<std::size_t>(desc.kernel.h * desc.kernel.w));
      p.numbers.resize(p.values.size());
    }
  }

  void forward(const Pass&) override {
    const float* x = b_.inputs[0].value;
    context_.parallel(b_.batch * out_[0], [&](int thread, std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) {
        const float* image = x + row / out_[0] * in_[0] * in_[1] * channels_;
        for (std::int64_t ow = 0; ow < out_[1]; ++ow) {
          const Window w = window(row % out_[0], ow);
          const std::int64_t at = (row * out_[1] + ow) * channels_;
          if (desc_.kind == PoolDesc::Kind::max)
            largest(image, w, at, pixels_[static_cast<std::size_t>(thread)]);
          else
            mean(image, w, b_.output + at);
        }
      }
    });
  }

  void backward() override {
    float* dx = b_.inputs[0].gradient;
    if (!dx) return;
    const float* g = b_.output_gradients[0];
    const std::int64_t image = in_[0] * in_[1] * channels_;
    context_.parallel(b_.batch, [&](int, std::int64_t first, std::int64_t last) {
      std::fill(dx + first * image, dx + last * image, 0.0f);
      for (std::int64_t n = first; n < last; ++n) {
        for (std::int64_t oh = 0; oh < out_[0]; ++oh) {
          for (std::int64_t ow = 0; ow < out_[1]; ++ow) {
            const std::int64_t at = ((n * out_[0] + oh) * out_[1] + ow) * channels_;
            if (desc_.kind == PoolDesc::Kind::max) {
              const std::int32_t* place = places_.data() + at;
              for (std::int64_t c = 0; c < channels_; ++c)
                dx[n * image + place[c] * channels_ + c] += g[at + c];
            } else {
              const Window w = window(oh, ow);
              for (std::int64_t h = w.h0; h < w.h1; ++h) {
                for (std::int64_t col = w.w0; col < w.w1; ++col) {
                  float* to = dx + n * image + (h * in_[1] + col) * channels_;
                  for (std::int64_t c = 0; c < channels_; ++c) to[c] += g[at + c] / w.divisor;
                }
              }
            }
          }
        }
      }
    });
  }

 private:
  struct Window {
    std::int64_t h0, h1, w0, w1;  // inside the input
    float divisor;
  };

  /// A window's pixels: where their channels lie, and their numbers in the image.
  struct WindowPixels {
    std::vector<const float*> values;
    std::vector<std::int32_t> numbers;
  };

  Window window(std::int64_t oh, std::int64_t ow) const {
    const std::int64_t h = oh * desc_.stride.h - desc_.pad.h, w = ow * desc_.stride.w - desc_.pad.w;
    Window out{std::max<std::int64_t>(h, 0), std::min(h + desc_.kernel.h, in_[0]),
               std::max<std::int64_t>(w, 0), std::min(w + desc_.kernel.w, in_[1]), 1.0f};
    // A window counts its border, but not what hangs over the border in ceil mode.
    const std::int64_t area = desc_.count_pad ? (std::min(h + desc_.kernel.h, in_[0] + desc_.pad.h) - h) *
                                                    (std::min(w + desc_.kernel.w, in_[1] + desc_.pad.w) - w)
                                              : (out.h1 - out.h0) * (out.w1 - out.w0);
    out.divisor = static_cast<float>(area);
    return out;
  }

  void mean(const float* image, const Window& w, float* out) const {
    std::fill(out, out + channels_, 0.0f);
    for (std::int64_t h = w.h0; h < w.h1; ++h) {
      for (std::int64_t col = w.w0; col < w.w1; ++col) {
        const float* x = image + (h * in_[1] + col) * channels_;
        for (std::int64_t c = 0; c < channels_; ++c) out[c] += x[c];
      }
    }
    for (std::int64_t c = 0; c < channels_; ++c) out[c] /= w.divisor;
  }

  void largest(const float* image, const Window& w, std::int64_t at, WindowPixels& pixels) {
    std::size_t count = 0;
    for (std::int64_t h = w.h0; h < w.h1; ++h) {
      for (std::int64_t col = w.w0; col < w.w1; ++col, ++count) {
        const std::int64_t pixel = h * in_[1] + col;
        pixels.values[count] = image + pixel * channels_;
        pixels.numbers[count] = static_cast<std::int32_t>(pixel);
      }
    }
    context_.k.largest(pixels.values.data(), pixels.numbers.data(), static_cast<std::int64_t>(count),
                       channels_, b_.output + at, places_.empty() ? nullptr : places_.data() + at);
  }

  Context& context_;
  Binding b_;
  PoolDesc desc_;
  Shape in_, out_;
  std::int64_t channels_;
  Buffer<std::int32_t> places_;
  std::vector<WindowPixels> pixels_;  // per thread
};

}  // namespace

std::unique_ptr<Op> make_pool(Context& context, const Binding& binding, const PoolDesc& desc) {
  return std::make_unique<PoolOp>(context, binding, desc);
}

}  // namespace lpsgd::cpu
