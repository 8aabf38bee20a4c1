#include "nn/cpu/im2col_products.h"

#include "nn/cpu/sgemm.h"

namespace lpsgd::cpu {

bool Im2colProducts::is_profitable(const Binding& b, const ConvDesc& desc) {
  // Products of fewer channels are slower than the convolution. A bias, or a fused ReLU, is oneDNN's.
  constexpr std::int64_t min_channels = 64;
  const bool used = b.training || desc.kernel == Size2{1, 1};
  return used && b.type == DataType::f32 && (desc.stride.h > 1 || desc.stride.w > 1) && desc.groups == 1 &&
         !desc.bias && !b.relu && std::min(b.inputs[0].shape[2], desc.filters) >= min_channels;
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
  lines_per_part_ = std::clamp<std::int64_t>(context.rows_per_part(lines_ * width, in_) / width, 1, lines_);
  im2col_ = context.reorder_buffer(ReorderUse::input, dnnl::memory::desc({lines_per_part_ * width, in_}, f32,
                                                                         dnnl::memory::format_tag::ab));
}

template <class Body>
void Im2colProducts::each_part(const Body& body) const {
  for (std::int64_t first = 0; first < lines_; first += lines_per_part_)
    body(first, std::min(first + lines_per_part_, lines_));
}

void Im2colProducts::fill_im2col(std::int64_t first, std::int64_t last, Size2 position) const {
  const Shape& image = b_.inputs[0].shape;
  const std::int64_t height = b_.shape[0], width = b_.shape[1];
  const float* x = as<float>(b_.inputs[0].value);
  auto* pixels = static_cast<float*>(im2col_.get_data_handle());
  context_.parallel(last - first, [&](int, std::int64_t begin, std::int64_t end) {
    float* to = pixels + begin * width * in_;
    for (std::int64_t line = first + begin; line < first + end; ++line) {
      const std::int64_t row = line % height * stride_.h + position.h - pad_.h;
      const bool inside = row >= 0 && row < image[0];
      const float* from = x + (line / height * image[0] + (inside ? row : 0)) * image[1] * in_;
      for (std::int64_t i = 0; i < width; ++i, to += in_) {
        const std::int64_t column = i * stride_.w + position.w - pad_.w;
        if (inside && column >= 0 && column < image[1])
          std::copy_n(from + column * in_, in_, to);
        else
          std::fill_n(to, in_, 0.0f);
      }
    }
  });
}

void Im2colProducts::forward() const {
  const auto* pixels = static_cast<const float*>(im2col_.get_data_handle());
  each_part([&](std::int64_t first, std::int64_t last) {
    fill_im2col(first, last, {0, 0});
    sgemm((last - first) * b_.shape[1], out_, in_, {pixels, in_}, {b_.parameters[0].value, in_, true},
          as<float>(b_.output) + first * b_.shape[1] * out_, out_);
  });
}

void Im2colProducts::weight_gradient() const {
  const auto* pixels = static_cast<const float*>(im2col_.get_data_handle());
  const std::int64_t positions = window_.h * window_.w;
  each_part([&](std::int64_t first, std::int64_t last) {
    const float* dy = as<float>(b_.output_gradients[0]) + first * b_.shape[1] * out_;
    for (std::int64_t p = 0; p < positions; ++p) {
      fill_im2col(first, last, {p / window_.w, p % window_.w});
      sgemm(out_, in_, (last - first) * b_.shape[1], {dy, out_, true}, {pixels, in_},
            b_.parameters[0].gradient + p * in_, positions * in_, first > 0);
    }
  });
}

}  // namespace lpsgd::cpu
