// Softmax cross-entropy: log(sum exp(z - max)) - (z_label - max), exponentials in float32, sums in double.
#include <cmath>

#include "core/error.h"
#include "nn/cpu/context.h"

namespace lpsgd::cpu {
namespace {

class SoftmaxCrossEntropy final : public LossOp {
 public:
  SoftmaxCrossEntropy(Context& context, const float* logits, float* gradient, std::int64_t batch,
                      std::int64_t frames, std::int64_t classes)
      : k_(context.k),
        logits_(logits),
        gradient_(gradient),
        batch_(batch),
        frames_(frames),
        classes_(classes),
        exponentials_(static_cast<std::size_t>(classes)) {
    labels_.resize(static_cast<std::size_t>(batch * frames));
  }

  Sums forward(const Pass& pass, std::span<const std::int32_t> labels) override {
    Sums sums;
    std::fill(labels_.begin(), labels_.end(), not_scored);
    for (std::int64_t n = 0; n < pass.valid; ++n) {
      const std::int64_t length = pass.lengths.empty() ? frames_ : pass.lengths[static_cast<std::size_t>(n)];
      for (std::int64_t row = n * frames_; row < n * frames_ + length; ++row)
        score(row, labels[static_cast<std::size_t>(row)], sums);
    }
    scored_ = sums.scored;
    return sums;
  }

  void backward() override {
    for (std::int64_t row = 0; row < batch_ * frames_; ++row) {
      const std::int32_t label = labels_[static_cast<std::size_t>(row)];
      float* g = gradient_ + row * classes_;
      if (label == not_scored) {
        std::fill_n(g, classes_, 0.0f);
        continue;
      }
      const float* z = logits_ + row * classes_;
      const double sum = k_.exponentials(z, largest(z), g, classes_);
      const double scale = 1 / (sum * static_cast<double>(scored_));
      for (std::int64_t c = 0; c < classes_; ++c) g[c] *= static_cast<float>(scale);
      const double p = std::exp(static_cast<double>(z[label]) - static_cast<double>(largest(z))) / sum;
      g[label] = static_cast<float>((p - 1) / static_cast<double>(scored_));
    }
  }

 private:
  static constexpr std::int32_t not_scored = -1;

  void score(std::int64_t row, std::int32_t label, Sums& sums) {
    if (label < 0 || label >= classes_)
      throw Error(fmt::format("a label is {}, but the network has {} classes", label, classes_));
    labels_[static_cast<std::size_t>(row)] = label;
    const float* z = logits_ + row * classes_;
    const float top = largest(z);
    sums.loss += std::log(k_.exponentials(z, top, exponentials_.data(), classes_)) -
                 (static_cast<double>(z[label]) - static_cast<double>(top));
    std::int64_t rank = 0;
    for (std::int64_t c = 0; c < classes_; ++c) rank += z[c] > z[label] || (z[c] == z[label] && c < label);
    // A score that is not a number beats none.
    const bool number = !std::isnan(z[label]);
    sums.top1 += number && rank < 1;
    sums.top5 += number && rank < 5;
    ++sums.scored;
  }

  float largest(const float* z) const { return *std::max_element(z, z + classes_); }

  const Kernels& k_;
  const float* logits_;
  float* gradient_;
  std::int64_t batch_, frames_, classes_, scored_ = 0;
  std::vector<std::int32_t> labels_;  // of the last forward
  Buffer<float> exponentials_;
};

}  // namespace

std::unique_ptr<LossOp> make_loss(Context& context, const float* logits, float* gradient, std::int64_t batch,
                                  std::int64_t frames, std::int64_t classes) {
  return std::make_unique<SoftmaxCrossEntropy>(context, logits, gradient, batch, frames, classes);
}

}  // namespace lpsgd::cpu
