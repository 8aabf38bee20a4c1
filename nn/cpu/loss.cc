// Softmax cross-entropy: log(sum exp(z - max)) - (z_label - max), exponentials in float32, sums in double.
#include <cmath>
#include <utility>

#include "core/error.h"
#include "nn/cpu/context.h"

namespace lpsgd::cpu {
namespace {

template <class T>
class SoftmaxCrossEntropy final : public LossOp {
 public:
  SoftmaxCrossEntropy(Context& context, const void* logits, void* gradient, std::int64_t batch,
                      std::int64_t frames, std::int64_t classes)
      : k_(context.k),
        logits_(as<T>(logits)),
        gradient_(as<T>(gradient)),
        batch_(batch),
        frames_(frames),
        classes_(classes),
        row_(static_cast<std::size_t>(classes)),
        exponentials_(static_cast<std::size_t>(classes)) {
    labels_.resize(static_cast<std::size_t>(batch * frames));
  }

  void forward(const Pass& pass, std::span<const std::int32_t> labels) override {
    Sums sums;  // of this pass
    std::fill(labels_.begin(), labels_.end(), not_scored);
    for (std::int64_t n = 0; n < pass.valid; ++n) {
      const std::int64_t length = pass.lengths.empty() ? frames_ : pass.lengths[static_cast<std::size_t>(n)];
      for (std::int64_t row = n * frames_; row < n * frames_ + length; ++row)
        score(row, labels[static_cast<std::size_t>(row)], sums);
    }
    scored_ = sums.scored;
    total_.loss += sums.loss;
    total_.top1 += sums.top1;
    total_.top5 += sums.top5;
    total_.scored += sums.scored;
  }

  Sums take() override { return std::exchange(total_, {}); }

  void backward() override {
    for (std::int64_t row = 0; row < batch_ * frames_; ++row) {
      const std::int32_t label = labels_[static_cast<std::size_t>(row)];
      float* g = exponentials_.data();
      if (label == not_scored) {
        std::fill_n(gradient_ + row * classes_, classes_, T{});
        continue;
      }
      const float* z = logits(row);
      const double sum = k_.exponentials(z, max_of(z), g, classes_);
      const double scale = 1 / (sum * static_cast<double>(scored_));
      for (std::int64_t c = 0; c < classes_; ++c) g[c] *= static_cast<float>(scale);
      const double p = std::exp(static_cast<double>(z[label]) - static_cast<double>(max_of(z))) / sum;
      g[label] = static_cast<float>((p - 1) / static_cast<double>(scored_));
      k_.of<T>().narrow(g, gradient_ + row * classes_, classes_);
    }
  }

 private:
  static constexpr std::int32_t not_scored = -1;

  void score(std::int64_t row, std::int32_t label, Sums& sums) {
    if (label == not_scored) return;
    if (label < 0 || label >= classes_)
      throw Error(fmt::format("a label is {}, but the network has {} classes", label, classes_));
    labels_[static_cast<std::size_t>(row)] = label;
    const float* z = logits(row);
    const float max = max_of(z);
    sums.loss += std::log(k_.exponentials(z, max, exponentials_.data(), classes_)) -
                 (static_cast<double>(z[label]) - static_cast<double>(max));
    std::int64_t rank = 0;
    for (std::int64_t c = 0; c < classes_; ++c) rank += z[c] > z[label] || (z[c] == z[label] && c < label);
    // A NaN ranks below every other score.
    const bool number = !std::isnan(z[label]);
    sums.top1 += number && rank < 1;
    sums.top5 += number && rank < 5;
    ++sums.scored;
  }

  /// A row's logits as float32, until the next call.
  const float* logits(std::int64_t row) {
    const T* z = logits_ + row * classes_;
    if constexpr (std::is_same_v<T, float>) return z;
    k_.of<T>().widen(z, row_.data(), classes_);
    return row_.data();
  }
  float max_of(const float* z) const { return *std::max_element(z, z + classes_); }

  const Kernels& k_;
  const T* logits_;
  T* gradient_;
  std::int64_t batch_, frames_, classes_, scored_ = 0;
  std::vector<std::int32_t> labels_;  // of the last forward
  Buffer<float> row_, exponentials_;
  Sums total_;  // since take()
};

}  // namespace

std::unique_ptr<LossOp> make_loss(Context& context, DataType type, const void* logits, void* gradient,
                                  std::int64_t batch, std::int64_t frames, std::int64_t classes) {
  return with_type(type, [&]<class T>() -> std::unique_ptr<LossOp> {
    return std::make_unique<SoftmaxCrossEntropy<T>>(context, logits, gradient, batch, frames, classes);
  });
}

}  // namespace lpsgd::cpu
