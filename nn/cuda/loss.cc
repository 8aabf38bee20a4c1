// The loss. Its sums stay on the device until take().
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "nn/cuda/context.h"

namespace lpsgd::cuda {
namespace {

class SoftmaxCrossEntropy final : public LossOp {
 public:
  SoftmaxCrossEntropy(Context& context, DataType type, const void* logits, void* gradient, std::int64_t rows,
                      std::int64_t classes, double label_smoothing)
      : context_(context),
        type_(type),
        logits_(logits),
        gradient_(gradient),
        count_(rows),
        classes_(classes),
        label_smoothing_(label_smoothing),
        rows_(context.array<LossRow>(rows)),
        sums_(context.array<LossSums>(1)),
        taken_(context.device, 1),
        bad_token_(context.device, 1) {}

  void forward(const Pass& pass, std::span<const std::int32_t>) override {
    const double smoothing = pass.training ? label_smoothing_ : 0;
    check(launch_loss(type_, logits_, context_.labels, rows_, count_, classes_, smoothing, sums_,
                      context_.handle()));
  }

  void backward() override {
    check(launch_loss_gradient(type_, logits_, context_.labels, rows_, context_.pass, gradient_, count_,
                               classes_, label_smoothing_, context_.handle()));
  }

  Sums take() override {
    const ScopedDevice current(context_.device);
    copy_bytes(taken_.data(), sums_, sizeof(LossSums), context_.stream);
    copy_bytes(bad_token_.data(), context_.bad_token, sizeof(float), context_.stream);
    zero_bytes(sums_, sizeof(LossSums), context_.stream);
    context_.stream.synchronize();
    if (const float token = bad_token_[0]; !std::isnan(token)) {
      bad_token_[0] = std::numeric_limits<float>::quiet_NaN();
      copy_bytes(context_.bad_token, bad_token_.data(), sizeof(float), context_.stream);
      context_.stream.synchronize();
      throw Error(fmt::format("a token is {}, which the vocabulary does not hold", token));
    }
    const LossSums& s = taken_[0];
    return {s.loss, s.top1, s.top5, s.scored};
  }

 private:
  Context& context_;
  DataType type_;
  const void* logits_;
  void* gradient_;
  std::int64_t count_, classes_;
  double label_smoothing_;
  LossRow* rows_;
  LossSums* sums_;
  PinnedBuffer<LossSums> taken_;
  PinnedBuffer<float> bad_token_;
};

}  // namespace

std::unique_ptr<LossOp> make_loss(Context& context, DataType type, const void* logits, void* gradient,
                                  const LossDesc& desc) {
  return std::make_unique<SoftmaxCrossEntropy>(context, type, logits, gradient, desc.batch * desc.frames,
                                               desc.classes, desc.label_smoothing);
}

}  // namespace lpsgd::cuda
