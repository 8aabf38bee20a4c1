// Batch normalisation, with the sum and the ReLU behind it in one pass. Forward reads its input twice, for
// the statistics and for the values. Backward reads gradient and input twice. If a convolution of single
// pixels is before it, backward hands it the input's gradient part by part, while the part is in the cache.
//
// The moments of a block are taken in float32 around the block's first pixel. Blocks are combined in double,
// so that a mean far from zero costs no precision.
#include <cmath>

#include "nn/cpu/channel_rows.h"
#include "nn/cpu/context.h"

namespace lpsgd::cpu {
namespace {

// An output of so many bytes has left the caches before it is read again, so it is written past them
// (measured with 32 MiB of cache for two cores that both train).
constexpr std::int64_t non_temporal_bytes = std::int64_t{8} << 20;

template <class T>
class BatchNormOp final : public Op {
 public:
  BatchNormOp(Context& context, const Binding& b, const BatchNormDesc& desc)
      : context_(context), b_(b), desc_(desc), k_(context.k.of<T>()) {
    channels_ = b.shape.back();
    pixels_ = b.elements() / channels_;
    if (b.output_stride == 0) fold_ = pixels_of_row(channels_, pixels_);
    width_ = channels_ * fold_;
    rows_ = pixels_ / fold_;
    stride_ = b.output_stride != 0 ? b.output_stride : width_;
    const auto array = [&](std::int64_t n) { return Buffer<float>(static_cast<std::size_t>(n)); };
    mean_ = array(width_);
    scale_ = array(width_);
    shift_ = array(width_);
    g_mean_ = array(width_);
    slope_ = array(width_);
    inverse_deviation_.resize(static_cast<std::size_t>(channels_));
    if (b.type == DataType::f32 && fold_ == 1) rowwise_source_ = dynamic_cast<RowwiseOp*>(b.rowwise_source);
    if (rowwise_source_) {
      rows_per_part_ = context.rows_per_part(rows_, width_);
      part_ = context.reorder_buffer(ReorderUse::output, dnnl::memory::desc({rows_per_part_, width_}, f32,
                                                                            dnnl::memory::format_tag::ab));
    }
    partials_.resize(static_cast<std::size_t>(context.threads));
    for (Partial& p : partials_) {
      p.a = array(width_);
      p.b = array(width_);
      p.first.resize(static_cast<std::size_t>(width_));
      p.second.resize(static_cast<std::size_t>(width_));
    }
  }

  bool runs_rowwise_source() const override { return rowwise_source_ != nullptr; }

  void forward(const Pass& pass) override {
    const bool training = pass.training && b_.training;
    const float* weight = b_.parameters[0].value;
    const float* bias = b_.parameters[1].value;
    float* running_mean = b_.buffers[0];
    float* running_variance = b_.buffers[1];
    if (training) moments();
    const double count = static_cast<double>(pixels_);
    const double unbiased = pixels_ > 1 ? count / (count - 1) : 1.0;
    for (std::int64_t c = 0; c < channels_; ++c) {
      const std::size_t i = static_cast<std::size_t>(c);
      double mean = static_cast<double>(running_mean[c]);
      double variance = static_cast<double>(running_variance[c]);
      if (training) {
        mean = partials_[0].first[i];
        variance = partials_[0].second[i] / count;
        const double m = desc_.momentum;
        running_mean[c] = static_cast<float>((1 - m) * static_cast<double>(running_mean[c]) + m * mean);
        running_variance[c] =
            static_cast<float>((1 - m) * static_cast<double>(running_variance[c]) + m * variance * unbiased);
      }
      inverse_deviation_[i] = 1 / std::sqrt(variance + desc_.eps);
      const float scale = static_cast<float>(static_cast<double>(weight[c]) * inverse_deviation_[i]);
      for (std::int64_t f = c; f < width_; f += channels_) {
        mean_[static_cast<std::size_t>(f)] = static_cast<float>(mean);
        scale_[static_cast<std::size_t>(f)] = scale;
        shift_[static_cast<std::size_t>(f)] = bias[c];
      }
    }
    normalize();
  }

  void recompute() override { normalize(); }

  void backward() override {
    // If a residual is added before the ReLU, the mask comes from the output. If not, it is computed from the
    // input.
    const T* g = as<T>(b_.masked ? b_.masked : b_.output_gradients[0]);
    const bool relu = b_.relu && !b_.masked;
    const T* x = as<T>(b_.inputs[0].value);
    clear_partials();
    context_.parallel(rows_, [&](int thread, std::int64_t first, std::int64_t last) {
      Partial& p = partials_[static_cast<std::size_t>(thread)];
      std::vector<const T*>& terms = p.terms;
      terms.resize(b_.output_gradients.size());
      blocks(first, last, [&](std::int64_t row, std::int64_t rows) {
        const std::int64_t at = row * width_;
        if (b_.masked) {
          for (std::size_t i = 0; i < terms.size(); ++i) terms[i] = as<T>(b_.output_gradients[i]) + at;
          k_.masked_sum(terms.data(), static_cast<int>(terms.size()),
                        b_.relu ? as<T>(b_.output) + at : nullptr, as<T>(b_.masked) + at, rows * width_);
        }
        k_.norm_gradient_sums(g + row * stride_, x + at, rows, width_, stride_, constants(), relu, p.a.data(),
                              p.b.data());
        for (std::int64_t c = 0; c < width_; ++c) {
          const std::size_t i = static_cast<std::size_t>(c);
          p.first[i] += static_cast<double>(p.a[i]);
          p.second[i] += static_cast<double>(p.b[i]);
        }
      });
    });

    float* weight_gradient = b_.parameters[0].gradient;
    float* bias_gradient = b_.parameters[1].gradient;
    const double count = static_cast<double>(pixels_);
    for (std::int64_t c = 0; c < channels_; ++c) {
      double sum_g = 0, sum_gx = 0;
      for (const Partial& p : partials_) {
        for (std::int64_t f = c; f < width_; f += channels_) {
          sum_g += p.first[static_cast<std::size_t>(f)];
          sum_gx += p.second[static_cast<std::size_t>(f)];
        }
      }
      const double inverse = inverse_deviation_[static_cast<std::size_t>(c)];
      weight_gradient[c] = static_cast<float>(sum_gx * inverse);
      bias_gradient[c] = static_cast<float>(sum_g);
      const double scale = static_cast<double>(b_.parameters[0].value[c]) * inverse;
      for (std::int64_t f = c; f < width_; f += channels_) {
        g_mean_[static_cast<std::size_t>(f)] = static_cast<float>(sum_g / count);
        slope_[static_cast<std::size_t>(f)] = static_cast<float>(scale * inverse * inverse * sum_gx / count);
      }
    }
    const auto input_gradient = [&](std::int64_t begin, std::int64_t end, T* dx) {
      context_.parallel(end - begin, [&](int, std::int64_t first, std::int64_t last) {
        blocks_reversed(first, last, [&](std::int64_t row, std::int64_t rows) {
          k_.norm_gradient(g + (begin + row) * stride_, x + (begin + row) * width_, dx + row * width_, rows,
                           width_, stride_, constants(), relu, g_mean_.data(), slope_.data());
        });
      });
    };
    if (!rowwise_source_) {
      if (b_.inputs[0].gradient) input_gradient(0, rows_, as<T>(b_.inputs[0].gradient));
      return;
    }
    T* part = as<T>(part_.get_data_handle());
    for (std::int64_t end = rows_; end > 0; end -= rows_per_part_) {
      const std::int64_t begin = std::max<std::int64_t>(0, end - rows_per_part_);
      input_gradient(begin, end, part);
      rowwise_source_->backward_rows(begin, end, as<float>(part));
    }
  }

 private:
  struct Partial {
    Buffer<float> a, b;                 // of one block
    std::vector<double> first, second;  // of a thread's blocks
    double count = 0;                   // rows of them
    std::vector<const T*> terms;
  };

  void normalize() {
    const bool non_temporal =
        b_.elements() * static_cast<std::int64_t>(sizeof(T)) >= non_temporal_bytes * context_.threads;
    context_.parallel(rows_, [&](int, std::int64_t first, std::int64_t last) {
      blocks_reversed(first, last, [&](std::int64_t row, std::int64_t rows) {
        const std::int64_t at = row * width_;
        k_.normalize(as<T>(b_.inputs[0].value) + at, b_.residual ? as<T>(b_.residual) + at : nullptr,
                     as<T>(b_.output) + row * stride_, rows, width_, stride_, constants(), b_.relu,
                     non_temporal);
      });
    });
  }

  NormConstants constants() const { return {mean_.data(), scale_.data(), shift_.data()}; }

  std::int64_t block_rows() const { return std::max(min_rows, block_floats / width_); }

  template <class Body>
  void blocks(std::int64_t first, std::int64_t last, const Body& body) const {
    const std::int64_t step = block_rows();
    for (std::int64_t row = first; row < last; row += step) body(row, std::min(step, last - row));
  }

  /// In reverse order, for a second pass: the first one leaves the end of large arrays in the cache.
  template <class Body>
  void blocks_reversed(std::int64_t first, std::int64_t last, const Body& body) const {
    const std::int64_t step = block_rows();
    for (; last > first; last -= step) body(std::max(first, last - step), std::min(step, last - first));
  }

  void clear_partials() {
    for (Partial& p : partials_) {
      std::fill(p.first.begin(), p.first.end(), 0.0);
      std::fill(p.second.begin(), p.second.end(), 0.0);
      p.count = 0;
    }
  }

  /// Leaves each channel's mean and sum of squared differences in the first partial.
  void moments() {
    clear_partials();
    const T* x = as<T>(b_.inputs[0].value);
    context_.parallel(rows_, [&](int thread, std::int64_t first, std::int64_t last) {
      Partial& p = partials_[static_cast<std::size_t>(thread)];
      blocks(first, last, [&](std::int64_t row, std::int64_t rows) {
        k_.row_moments(x + row * width_, rows, width_, p.a.data(), p.b.data());
        const double now = static_cast<double>(rows);
        for (std::int64_t c = 0; c < width_; ++c) {
          const std::size_t i = static_cast<std::size_t>(c);
          join_moments(p.first[i], p.second[i], p.count, static_cast<double>(p.a[i]) / now,
                       static_cast<double>(p.b[i]), now);
        }
        p.count += now;
      });
    });
    for (std::int64_t c = 0; c < channels_; ++c) {
      double mean = 0, m2 = 0, count = 0;
      for (const Partial& p : partials_) {
        if (p.count == 0) continue;
        for (std::int64_t f = c; f < width_; f += channels_) {
          join_moments(mean, m2, count, p.first[static_cast<std::size_t>(f)],
                       p.second[static_cast<std::size_t>(f)], p.count);
          count += p.count;
        }
      }
      partials_[0].first[static_cast<std::size_t>(c)] = mean;  // later channels read f >= c only
      partials_[0].second[static_cast<std::size_t>(c)] = m2;
    }
  }

  Context& context_;
  Binding b_;
  BatchNormDesc desc_;
  const ActivationKernels<T>& k_;
  std::int64_t channels_ = 0, pixels_ = 0, fold_ = 1, width_ = 0, rows_ = 0;
  std::int64_t stride_ = 0;  // of the rows of the output and its gradient
  Buffer<float> mean_, scale_, shift_, g_mean_, slope_;
  std::vector<double> inverse_deviation_;
  std::vector<Partial> partials_;
  // The operation that wrote the input, if it takes the gradient row by row, and memory for a part of that
  // gradient.
  RowwiseOp* rowwise_source_ = nullptr;
  std::int64_t rows_per_part_ = 0;
  dnnl::memory part_;
};

}  // namespace

std::unique_ptr<Op> make_batch_norm(Context& context, const Binding& binding, const BatchNormDesc& desc) {
  return with_type(binding.type, [&]<class T>() -> std::unique_ptr<Op> {
    return std::make_unique<BatchNormOp<T>>(context, binding, desc);
  });
}

}  // namespace lpsgd::cpu
