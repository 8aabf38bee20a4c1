// Group normalisation: the operation that launches the kernels of group_norm.cu.
#include "nn/cuda/context.h"

namespace lpsgd::cuda {
namespace {

class GroupNormOp final : public Op {
 public:
  GroupNormOp(Context& context, const Binding& b, const GroupNormDesc& desc) : context_(context), b_(b) {
    const std::int64_t channels = b.shape.back(), in_group = channels / desc.groups;
    shape_ = {b.batch,
              b.elements() / b.batch / channels,
              static_cast<int>(channels),
              static_cast<int>(desc.groups),
              static_cast<float>(desc.eps),
              b.relu};
    constexpr std::int64_t limit = std::int64_t{1} << 32;
    require(shape_.samples * std::max<std::int64_t>(shape_.pixels, shape_.groups) < limit,
            "group_norm on a GPU: a batch has 2^32 pixels or groups");
    if (!b.training) return;
    moments_ = context.array<RowMoments>(b.batch * desc.groups);
    // The channels of a pack have the same moments.
    const int max_pack = in_group % 8 == 0 ? 8 : in_group % 4 == 0 ? 4 : 1;
    sums_ = context.row_sums(shape_.samples * shape_.pixels, channels, max_pack);
  }

  void forward(const Pass& pass) override {
    check(launch_group_norm(b_.type, shape_, b_.inputs[0].value, weight(), bias(), b_.output,
                            pass.training ? moments_ : nullptr, context_.handle()));
  }

  void backward() override {
    const void *g = b_.output_gradients[0], *x = b_.inputs[0].value;
    check(launch_group_norm_sums(b_.type, shape_, g, x, weight(), bias(), moments_, sums_,
                                 b_.parameters[0].gradient, b_.parameters[1].gradient, context_.handle()));
    if (b_.inputs[0].gradient)
      check(launch_group_norm_gradient(b_.type, shape_, g, x, weight(), bias(), moments_,
                                       b_.inputs[0].gradient, context_.handle()));
  }

 private:
  const float* weight() const { return b_.parameters[0].value; }
  const float* bias() const { return b_.parameters[1].value; }

  Context& context_;
  Binding b_;
  GroupNormShape shape_;
  RowMoments* moments_ = nullptr;
  RowSums sums_;
};

}  // namespace

std::unique_ptr<Op> make_group_norm(Context& context, const Binding& binding, const GroupNormDesc& desc) {
  return std::make_unique<GroupNormOp>(context, binding, desc);
}

}  // namespace lpsgd::cuda
