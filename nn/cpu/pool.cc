// Max and average pooling in NHWC. Max pooling stores the position of each maximum in its window, so that
// backward adds each gradient at one position. It is the first of equal values, or the first NaN. Sums are
// taken in float32.
#include <fmt/format.h>

#include <span>

#include "core/error.h"
#include "nn/cpu/context.h"

namespace lpsgd::cpu {
namespace {

template <class T>
class PoolOp final : public Op {
 public:
  PoolOp(Context& context, const Binding& b, const PoolDesc& desc)
      : context_(context),
        k_(context.k.of<T>()),
        b_(b),
        desc_(desc),
        in_(b.inputs[0].shape),
        out_(b.shape),
        channels_(in_[2]),
        stride_(b.row_stride()) {
    const std::int64_t window = std::min(desc.kernel.h, in_[0]) * std::min(desc.kernel.w, in_[1]);
    if (desc.kind == PoolDesc::Kind::max && b.training) {
      if (window > std::int64_t{1} << 16)
        throw DeviceError(fmt::format(
            "max pooling over windows of {} pixels cannot be trained on the CPU; it takes at most 65536",
            window));
      argmax_ = Buffer<std::uint16_t>(static_cast<std::size_t>(b.elements()));
    }
    workers_.resize(static_cast<std::size_t>(context.threads));
    for (Worker& w : workers_) {
      w.offsets.resize(static_cast<std::size_t>(window));
      const bool image = b.training && !std::is_same_v<T, float>;
      w.sums = Buffer<float>(static_cast<std::size_t>(image ? in_[0] * in_[1] * channels_ : channels_));
    }
  }

  void forward(const Pass&) override {
    const T* x = as<T>(b_.inputs[0].value);
    context_.parallel(b_.batch * out_[0], [&](int thread, std::int64_t first, std::int64_t last) {
      for (std::int64_t row = first; row < last; ++row) {
        const T* image = x + row / out_[0] * in_[0] * in_[1] * channels_;
        for (std::int64_t ow = 0; ow < out_[1]; ++ow) {
          const Window w = window(row % out_[0], ow);
          const std::int64_t pixel = row * out_[1] + ow;
          if (desc_.kind == PoolDesc::Kind::max)
            max(image, w, pixel, worker(thread));
          else
            mean(image, w, worker(thread).sums.data(), as<T>(b_.output) + pixel * stride_);
        }
      }
    });
  }

  void backward() override {
    T* gradient = as<T>(b_.inputs[0].gradient);
    if (!gradient) return;
    const T* g = as<T>(b_.output_gradients[0]);
    const std::int64_t image = in_[0] * in_[1] * channels_;
    context_.parallel(b_.batch, [&](int thread, std::int64_t first, std::int64_t last) {
      for (std::int64_t n = first; n < last; ++n) {
        float* dx = nullptr;
        if constexpr (std::is_same_v<T, float>)
          dx = gradient + n * image;
        else
          dx = worker(thread).sums.data();
        std::fill_n(dx, image, 0.0f);
        for (std::int64_t oh = 0; oh < out_[0]; ++oh) {
          for (std::int64_t ow = 0; ow < out_[1]; ++ow) {
            const std::int64_t pixel = (n * out_[0] + oh) * out_[1] + ow;
            const T* from = g + pixel * stride_;
            const Window w = window(oh, ow);
            if (desc_.kind == PoolDesc::Kind::max) {
              const std::int64_t* offsets = offsets_of(w, worker(thread)).data();
              const std::uint16_t* argmax = argmax_.data() + pixel * channels_;
              for (std::int64_t c = 0; c < channels_; ++c) dx[offsets[argmax[c]] + c] += widen(from[c]);
            } else {
              for (std::int64_t h = w.h0; h < w.h1; ++h) {
                for (std::int64_t col = w.w0; col < w.w1; ++col) {
                  float* to = dx + (h * in_[1] + col) * channels_;
                  for (std::int64_t c = 0; c < channels_; ++c) to[c] += widen(from[c]) / w.divisor;
                }
              }
            }
          }
        }
        if constexpr (!std::is_same_v<T, float>) k_.narrow(dx, gradient + n * image, image);
      }
    });
  }

 private:
  struct Window {
    std::int64_t h0, h1, w0, w1;  // inside the input
    float divisor;
  };

  /// A thread's memory.
  struct Worker {
    std::vector<std::int64_t> offsets;  // where the channels of a window's pixels lie in the image
    Buffer<float> sums;  // of a pixel's channels; of an image's gradient where that is not float32 itself
  };
  Worker& worker(int thread) { return workers_[static_cast<std::size_t>(thread)]; }

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

  void mean(const T* image, const Window& w, float* sums, T* out) const {
    std::fill_n(sums, channels_, 0.0f);
    for (std::int64_t h = w.h0; h < w.h1; ++h) {
      for (std::int64_t col = w.w0; col < w.w1; ++col) {
        const T* x = image + (h * in_[1] + col) * channels_;
        for (std::int64_t c = 0; c < channels_; ++c) sums[c] += widen(x[c]);
      }
    }
    for (std::int64_t c = 0; c < channels_; ++c) out[c] = narrow<T>(sums[c] / w.divisor);
  }

  std::span<const std::int64_t> offsets_of(const Window& w, Worker& pixels) const {
    std::size_t count = 0;
    for (std::int64_t h = w.h0; h < w.h1; ++h)
      for (std::int64_t col = w.w0; col < w.w1; ++col)
        pixels.offsets[count++] = (h * in_[1] + col) * channels_;
    return {pixels.offsets.data(), count};
  }

  void max(const T* image, const Window& w, std::int64_t pixel, Worker& pixels) {
    const std::span<const std::int64_t> offsets = offsets_of(w, pixels);
    k_.window_max(image, offsets.data(), static_cast<std::int64_t>(offsets.size()), channels_,
                  as<T>(b_.output) + pixel * stride_,
                  argmax_.empty() ? nullptr : argmax_.data() + pixel * channels_);
  }

  Context& context_;
  const ActivationKernels<T>& k_;
  Binding b_;
  PoolDesc desc_;
  Shape in_, out_;
  std::int64_t channels_, stride_;  // stride_: of the output's pixels
  Buffer<std::uint16_t> argmax_;
  std::vector<Worker> workers_;
};

}  // namespace

std::unique_ptr<Op> make_pool(Context& context, const Binding& binding, const PoolDesc& desc) {
  return with_type(binding.type, [&]<class T>() -> std::unique_ptr<Op> {
    return std::make_unique<PoolOp<T>>(context, binding, desc);
  });
}

}  // namespace lpsgd::cpu
