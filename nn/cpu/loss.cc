// Softmax cross-entropy: log(sum exp(z - max)) - (z_label - max), exponentials in float32, sums in double.
// With label smoothing e the second term is (1 - e) (z_label - max) + e mean(z - max). Rows are computed in
// parallel and added in their order.
#include <cmath>
#include <utility>

#include "core/error.h"
#include "nn/cpu/context.h"

namespace lpsgd::cpu {
namespace {

template <class T>
class SoftmaxCrossEntropy final : public LossOp {
 public:
  SoftmaxCrossEntropy(Context& context, const void* logits, void* gradient, const LossDesc& desc)
      : context_(context),
        k_(context.k.of<T>()),
        logits_(as<T>(logits)),
        gradient_(as<T>(gradient)),
        frames_(desc.frames),
        classes_(desc.classes),
        label_smoothing_(desc.label_smoothing) {
    rows_.resize(static_cast<std::size_t>(desc.batch * desc.frames));
  }

  void forward(const Pass& pass, std::span<const std::int32_t> labels) override {
    Sums sums;  // of this pass
    smoothing_ = pass.training ? label_smoothing_ : 0;
    for (std::int64_t r = 0; r < rows(); ++r) {
      const std::int64_t n = r / frames_;
      const std::int32_t label = labels[static_cast<std::size_t>(r)];
      const bool is_scored = n < pass.valid && r % frames_ < pass.length(n, frames_) && label != not_scored;
      if (is_scored && (label < 0 || label >= classes_))
        throw Error(fmt::format("a label is {}, but the network has {} classes", label, classes_));
      row(r).label = is_scored ? label : not_scored;
    }
    context_.parallel(rows(), [&](int, std::int64_t first, std::int64_t last) {
      for (std::int64_t r = first; r < last; ++r)
        if (row(r).label != not_scored) score(r);
    });
    for (const Row& row : rows_) {
      if (row.label == not_scored) continue;
      sums.loss += row.loss;
      sums.top1 += row.rank < 1;
      sums.top5 += row.rank < 5;
      ++sums.scored;
    }
    divisor_ = pass.loss_divisor > 0 ? pass.loss_divisor : static_cast<double>(sums.scored);
    total_.loss += sums.loss;
    total_.top1 += sums.top1;
    total_.top5 += sums.top5;
    total_.scored += sums.scored;
  }

  Sums take() override { return std::exchange(total_, {}); }

  void backward() override {
    context_.parallel(rows(), [&](int, std::int64_t first, std::int64_t last) {
      for (std::int64_t r = first; r < last; ++r) {
        T* gradient = gradient_ + r * classes_;
        const Row& of = row(r);
        if (of.label == not_scored) {
          std::fill_n(gradient, classes_, T{});
          continue;
        }
        const T* z = logits_ + r * classes_;
        const double share = smoothing_ / static_cast<double>(classes_);
        k_.softmax(z, of.max, static_cast<float>(1 / (of.sum * divisor_)),
                   static_cast<float>(share / divisor_), gradient, classes_);
        const double p = std::exp(at_label(z, of.label) - static_cast<double>(of.max)) / of.sum;
        gradient[of.label] = narrow<T>(static_cast<float>((p - (1 - smoothing_) - share) / divisor_));
      }
    });
  }

 private:
  static constexpr std::int32_t not_scored = -1;
  /// What forward finds of a row.
  struct Row {
    std::int32_t label = not_scored;
    float max = 0;
    double sum = 1, loss = 0;
    std::int64_t rank = 0;  // of the label
  };

  std::int64_t rows() const { return static_cast<std::int64_t>(rows_.size()); }
  Row& row(std::int64_t r) { return rows_[static_cast<std::size_t>(r)]; }
  static double at_label(const T* z, std::int32_t label) { return static_cast<double>(widen(z[label])); }

  void score(std::int64_t r) {
    Row& to = row(r);
    const T* z = logits_ + r * classes_;
    const SoftmaxRow of = k_.softmax_row(z, classes_, to.label);
    const double label = at_label(z, to.label);
    to.max = of.max;
    to.sum = of.sum;
    const double max = static_cast<double>(of.max);
    double target = label - max;
    if (smoothing_ > 0) {
      double scores = 0;
      for (std::int64_t c = 0; c < classes_; ++c) scores += static_cast<double>(widen(z[c])) - max;
      target = (1 - smoothing_) * target + smoothing_ * (scores / static_cast<double>(classes_));
    }
    to.loss = std::log(of.sum) - target;
    to.rank = std::isnan(label) ? classes_ + 5 : of.rank;  // a NaN ranks below every other score
  }

  Context& context_;
  const ActivationKernels<T>& k_;
  const T* logits_;
  T* gradient_;
  std::int64_t frames_, classes_;
  double label_smoothing_;
  double smoothing_ = 0;  // of the last forward
  double divisor_ = 1;
  std::vector<Row> rows_;
  Sums total_;  // since take()
};

}  // namespace

std::unique_ptr<LossOp> make_loss(Context& context, DataType type, const void* logits, void* gradient,
                                  const LossDesc& desc) {
  return with_type(type, [&]<class T>() -> std::unique_ptr<LossOp> {
    return std::make_unique<SoftmaxCrossEntropy<T>>(context, logits, gradient, desc);
  });
}

}  // namespace lpsgd::cpu
