#include "nn/cpu/im2col_products.h"

#include "nn/cpu/sgemm.h"

namespace lpsgd::cpu {

bool Im2colProducts::pay(const Binding& b, const ConvDesc& desc) {
  // Products of fewer channels are slower than the convolution. A bias, or a fused ReLU, is oneDNN's.
  constexpr std::int64_t least_channels = 64;
  const bool used = b.training || desc.kernel == Size2{1, 1};
  return used && b.type == DataType::f32 && (desc.stride.h > 1 || desc.stride.w > 1) && desc.groups == 1 &&
         !desc.bias && !b.relu && std::min(b.inputs[0].shape[2], desc.filters) >= least_channels;
}

Im2colProducts::Im2colProducts(Context& context, const Binding& b, const ConvDesc& desc)
    : context_(context),
      b_(b),
      window_(desc.kernel),
      stride_(desc.stride),
      pad_(desc.pad),
      in_(b.inputs[0].shape[2]),
      out_(desc.filters),
      lines_(b.batch * b.shape[0]) {
  const std::int64_t width = b.shape[1];
  lines_a_part_ = std::clamp<std::int64_t>(context.rows_a_part(lines_ * width, in_) / width, 1, lines_);
  gathered_ = context.passing(
      Passing::input, dnnl::memory::desc({lines_a_part_ * width, in_}, f32, dnnl::memory::format_tag::ab));
}

template <class Body>
void Im2colProducts::parts(const Body& body) const {
  for (std::int64_t first = 0; first < lines_; first += lines_a_part_)
    body(first, std::min(first + lines_a_part_, lines_));
}

void Im2colProducts::gather(std::int64_t first, std::int64_t last, Size2 tap) const {
  const Shape& image = b_.inputs[0].shape;
  const std::int64_t height = b_.shape[0], width = b_.shape[1];
  const float* x = as<float>(b_.inputs[0].value);
  auto* gathered = static_cast<float*>(gathered_.get_data_handle());
  context_.parallel(last - first, [&](int, std::int64_t begin, std::int64_t end) {
    float* to = gathered + begin * width * in_;
    for (std::int64_t line = first + begin; line < first + end; ++line) {
      const std::int64_t row = line % height * stride_.h + tap.h - pad_.h;
      const bool inside = row >= 0 && row < image[0];
      const float* from = x + (line / height * image[0] + (inside ? row : 0)) * image[1] * in_;
      for (std::int64_t i = 0; i < width; ++i, to += in_) {
        const std::int64_t column = i * stride_.w + tap.w - pad_.w;
        if (inside && column >= 0 && column < image[1])
          std::copy_n(from + column * in_, in_, to);
        else
          std::fill_n(to, in_, 0.0f);
      }
    }
  });
}

void Im2colProducts::forward() const {
  const auto* gathered = static_cast<const float*>(gathered_.get_data_handle());
  parts([&](std::int64_t first, std::int64_t last) {
    gather(first, last, {0, 0});
    sgemm((last - first) * b_.shape[1], out_, in_, {gathered, in_}, {b_.parameters[0].value, in_, true},
          as<float>(b_.output) + first * b_.shape[1] * out_, out_);
  });
}

void Im2colProducts::weight_gradient() const {
  const auto* gathered = static_cast<const float*>(gathered_.get_data_handle());
  const std::int64_t taps = window_.h * window_.w;
  parts([&](std::int64_t first, std::int64_t last) {
    const float* dy = as<float>(b_.output_gradients[0]) + first * b_.shape[1] * out_;
    for (std::int64_t p = 0; p < taps; ++p) {
      gather(first, last, {p / window_.w, p % window_.w});
      sgemm(out_, in_, (last - first) * b_.shape[1], {dy, out_, true}, {gathered, in_},
            b_.parameters[0].gradient + p * in_, taps * in_, first > 0);
    }
  });
}

}  // namespace lpsgd::cpu
