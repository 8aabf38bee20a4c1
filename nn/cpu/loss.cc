// Softmax cross-entropy, in double: log(sum exp(z - max)) - (z_label - max).
#include <cmath>

#include "core/error.h"
#include "nn/cpu/context.h"

namespace lpsgd::cpu {
namespace {

class SoftmaxCrossEntropy final : public LossOp {
 public:
  SoftmaxCrossEntropy(const float* logits, float* gradient, std::int64_t batch, std::int64_t classes)
      : logits_(logits), gradient_(gradient), batch_(batch), classes_(classes) {
    labels_.resize(static_cast<std::size_t>(batch));
  }

  Sums forward(std::span<const std::int32_t> labels, std::int64_t valid) override {
    Sums sums;
    for (std::int64_t n = 0; n < valid; ++n) {
      const float* z = logits_ + n * classes_;
      const std::int32_t label = labels[static_cast<std::size_t>(n)];
      if (label < 0 || label >= classes_)
        throw Error(fmt::format("a label is {}, but the network has {} classes", label, classes_));
      labels_[static_cast<std::size_t>(n)] = label;
      const double top = largest(z);
      sums.loss += std::log(exponentials(z, top)) - (static_cast<double>(z[label]) - top);
      std::int64_t rank = 0;
      for (std::int64_t c = 0; c < classes_; ++c)
        if (z[c] > z[label] || (z[c] == z[label] && c < label)) ++rank;
      // A score that is not a number beats none.
      const bool number = !std::isnan(z[label]);
      sums.top1 += number && rank < 1;
      sums.top5 += number && rank < 5;
    }
    return sums;
  }

  void backward() override {
    for (std::int64_t n = 0; n < batch_; ++n) {
      const float* z = logits_ + n * classes_;
      float* g = gradient_ + n * classes_;
      const double top = largest(z);
      const double scale = 1 / exponentials(z, top);
      const std::int32_t label = labels_[static_cast<std::size_t>(n)];
      for (std::int64_t c = 0; c < classes_; ++c) {
        const double p = std::exp(static_cast<double>(z[c]) - top) * scale;
        g[c] = static_cast<float>((p - (c == label ? 1 : 0)) / static_cast<double>(batch_));
      }
    }
  }

 private:
  double largest(const float* z) const { return static_cast<double>(*std::max_element(z, z + classes_)); }
  double exponentials(const float* z, double top) const {
    double sum = 0;
    for (std::int64_t c = 0; c < classes_; ++c) sum += std::exp(static_cast<double>(z[c]) - top);
    return sum;
  }

  const float* logits_;
  float* gradient_;
  std::int64_t batch_, classes_;
  std::vector<std::int32_t> labels_;
};

}  // namespace

std::unique_ptr<LossOp> make_loss(Context&, const float* logits, float* gradient, std::int64_t batch,
                                  std::int64_t classes) {
  return std::make_unique<SoftmaxCrossEntropy>(logits, gradient, batch, classes);
}

}  // namespace lpsgd::cpu
