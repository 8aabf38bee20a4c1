// Batch normalisation (Ioffe and Szegedy 2015): y = (x - mean) / sqrt(variance + eps) * weight + bias, per
// channel. Training uses the batch's mean and biased variance; running statistics move by `momentum` towards
// the batch's mean and unbiased variance, as PyTorch's do.
#include "nn/layer.h"
#include "nn/operators.h"
#include "nn/ops.h"

namespace lpsgd {
namespace {

class BatchNormLayer final : public Layer {
 public:
  void fields(config::Visitor& v) override {
    v.field("eps", desc_.eps, "added to the variance", {.min = 0, .min_open = true});
    v.field("momentum", desc_.momentum, "the batch's share in the running statistics after a step",
            {.min = 0, .max = 1});
  }

  Shape infer(std::span<const Shape> inputs) override {
    const Shape& in = without_frames(inputs, "batch_norm");
    channels_ = in.back();
    elements_ = elements_of(in).value_or(0);
    return in;
  }

  std::vector<ParameterSpec> parameters() const override {
    return {{"weight", TensorKind::norm, {channels_}, Init{Init::Kind::constant, 1}},
            {"bias", TensorKind::norm, {channels_}, Init{}}};
  }
  std::vector<BufferSpec> buffers() const override {
    return {{"running_mean", {channels_}, 0.0f}, {"running_var", {channels_}, 1.0f}};
  }

  std::int64_t flops() const override { return 2 * elements_; }
  bool can_fuse(Epilogue) const override { return true; }
  bool can_write_columns() const override { return true; }
  bool emits_gradient_rows() const override { return true; }
  bool sums_gradients() const override { return true; }
  bool reads_gradients_twice() const override { return true; }
  bool can_mask_by_input() const override { return true; }
  bool can_recompute() const override { return true; }

  std::unique_ptr<Op> make(Backend& backend, const Binding& binding) const override {
    if (binding.training && binding.batch * elements_ == channels_)
      throw LayerError(
          "a training pass has one value of each channel, so the output would not depend on the input; give "
          "each rank and micro-batch several samples");
    return backend.batch_norm(binding, desc_);
  }
  void write_operators(OperatorWriter& out) const override {
    out.output(out.add("BatchNormalization",
                       {out.input(), out.tensor("weight"), out.tensor("bias"), out.tensor("running_mean"),
                        out.tensor("running_var")},
                       {{"epsilon", desc_.eps}}));
  }

 private:
  BatchNormDesc desc_;
  std::int64_t channels_ = 0, elements_ = 0;
};

}  // namespace

std::unique_ptr<Layer> make_batch_norm_layer() {
  return std::make_unique<BatchNormLayer>();
}

}  // namespace lpsgd
