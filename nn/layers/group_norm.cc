// Group normalisation (Wu and He 2018): y = (x - mean) / sqrt(variance + eps) * weight + bias, with the mean
// and the biased variance of each sample's group of neighbouring channels, in training and evaluation alike.
// So a sample's output depends on no other sample, nor on how many there are.
#include <fmt/core.h>

#include "nn/layer.h"
#include "nn/operators.h"
#include "nn/ops.h"

namespace lpsgd {
namespace {

class GroupNormLayer final : public Layer {
 public:
  void fields(config::Visitor& v) override {
    v.field("groups", desc_.groups,
            "into how many groups the channels are divided; 1: one of all; as many as "
            "channels: instance normalisation",
            {.min = 1, .max = max_option});
    v.field("eps", desc_.eps, "added to the variance", {.min = 0, .min_open = true});
  }

  Shape infer(std::span<const Shape> inputs) override {
    const Shape& in = without_frames(inputs, "group_norm");
    channels_ = in.back();
    if (channels_ % desc_.groups != 0)
      throw LayerError(fmt::format("{} channels cannot be divided into {} groups", channels_, desc_.groups));
    elements_ = elements_of(in).value_or(0);
    if (elements_ == desc_.groups)
      throw LayerError(
          fmt::format("{} groups of one value each: the output would not depend on the input", desc_.groups));
    return in;
  }

  std::vector<ParameterSpec> parameters() const override {
    return {{"weight", TensorKind::norm, {channels_}, Init{Init::Kind::constant, 1}},
            {"bias", TensorKind::norm, {channels_}, Init{}}};
  }

  std::int64_t flops() const override { return 2 * elements_; }
  std::int64_t kept_bytes() const override {  // each group's mean and inverse deviation
    return desc_.groups * 2 * static_cast<std::int64_t>(sizeof(float));
  }
  bool can_fuse(Epilogue epilogue) const override { return !epilogue.residual; }
  bool can_mask_by_input() const override { return true; }

  std::unique_ptr<Op> make(Backend& backend, const Binding& binding) const override {
    return backend.group_norm(binding, desc_);
  }
  void write_operators(OperatorWriter& out) const override {
    // This version of the operators normalises each channel alone; a group becomes a channel of one long row.
    const OperatorWriter::Value grouped =
        out.add("Reshape", {out.input(), out.constant("groups", {0, desc_.groups, -1})});
    const auto each = [&](const char* name, float value) {
      return out.constant(name, {desc_.groups},
                          std::vector<float>(static_cast<std::size_t>(desc_.groups), value));
    };
    const OperatorWriter::Value normal = out.add(
        "InstanceNormalization", {grouped, each("one", 1), each("zero", 0)}, {{"epsilon", desc_.eps}});
    const OperatorWriter::Value image = out.add("Reshape", {normal, out.add("Shape", {out.input()})});
    out.output(
        out.add("Add", {out.add("Mul", {image, out.feature_tensor("weight")}), out.feature_tensor("bias")}));
  }

 private:
  GroupNormDesc desc_;
  std::int64_t channels_ = 1, elements_ = 0;
};

}  // namespace

std::unique_ptr<Layer> make_group_norm_layer() {
  return std::make_unique<GroupNormLayer>();
}

}  // namespace lpsgd
