// Pooling, local response normalisation, dropout and embedding: the operations that launch their kernels.
#include <fmt/format.h>

#include "core/error.h"
#include "nn/cuda/context.h"

namespace lpsgd::cuda {
namespace {

class PoolOp final : public OwnMemoryOp {
 public:
  PoolOp(Context& context, const Binding& b, const PoolDesc& d) : context_(context), b_(b) {
    const auto small = [](std::int64_t n) { return static_cast<int>(n); };
    const Shape &in = b.inputs[0].shape, &out = b.shape;
    shape_ = {.batch = b.batch,
              .h = small(in[0]),
              .w = small(in[1]),
              .channels = small(in[2]),
              .out_h = small(out[0]),
              .out_w = small(out[1]),
              .kernel_h = small(d.kernel.h),
              .kernel_w = small(d.kernel.w),
              .stride_h = small(d.stride.h),
              .stride_w = small(d.stride.w),
              .pad_h = small(d.pad.h),
              .pad_w = small(d.pad.w),
              .max = d.kind == PoolDesc::Kind::max,
              .count_pad = d.count_pad,
              .out_stride = small(b.row_stride())};
    if (shape_.max && b.training && d.kernel.h * d.kernel.w > max_pool_window)
      throw DeviceError(
          fmt::format("max pooling over windows of {} pixels cannot be trained on a GPU; it takes at most {}",
                      d.kernel.h * d.kernel.w, max_pool_window));
    if (shape_.max && b.training) place_ = context.array<PoolPlace>(b.elements());
  }
  void forward(const Pass&) override {
    check(launch_pool(b_.type, shape_, b_.inputs[0].value, b_.output, place_, context_.handle()));
  }
  void backward() override {
    if (b_.inputs[0].gradient)
      check(launch_pool_gradient(b_.type, shape_, b_.output_gradients[0], place_, b_.inputs[0].gradient,
                                 context_.handle()));
  }

 private:
  Context& context_;
  Binding b_;
  PoolShape shape_;
  PoolPlace* place_ = nullptr;
};

class LrnOp final : public OwnMemoryOp {
 public:
  LrnOp(Context& context, const Binding& b, const LrnDesc& d)
      : context_(context),
        b_(b),
        channels_(b.shape.back()),
        pixels_(b.elements() / channels_),
        constants_{d.size, static_cast<float>(d.alpha / static_cast<double>(d.size)),
                   static_cast<float>(d.beta), static_cast<float>(d.k)} {}
  void forward(const Pass&) override {
    check(launch_lrn(b_.type, b_.inputs[0].value, b_.output, pixels_, channels_, constants_,
                     context_.handle()));
  }
  void backward() override {
    if (b_.inputs[0].gradient)
      check(launch_lrn_gradient(b_.type, b_.output_gradients[0], b_.inputs[0].value, b_.inputs[0].gradient,
                                pixels_, channels_, constants_, context_.handle()));
  }

 private:
  Context& context_;
  Binding b_;
  std::int64_t channels_, pixels_;
  LrnConstants constants_;
};

class DropoutOp final : public OwnMemoryOp {
 public:
  DropoutOp(Context& context, const Binding& b, double probability)
      : context_(context), b_(b), draws_(b.random, probability) {
    if (!b.training) return;
    kept_ = context.array<std::uint8_t>(b.elements());
    gradients_ = terms_of(b.output_gradients);
  }
  void forward(const Pass& pass) override {
    const void* x = b_.inputs[0].value;
    if (pass.training && b_.training)
      check(launch_dropout(b_.type, draws_, context_.pass, b_.batch, b_.elements() / b_.batch, x, b_.output,
                           kept_, context_.handle()));
    else if (x != b_.output)
      copy_bytes(b_.output, x, static_cast<std::size_t>(b_.elements() * size_of(b_.type)), context_.queue());
  }
  void backward() override {
    if (b_.inputs[0].gradient)
      check(launch_dropout_gradient(b_.type, gradients_, kept_, draws_.scale, b_.inputs[0].gradient,
                                    b_.elements(), context_.handle()));
  }

 private:
  Context& context_;
  Binding b_;
  DropoutDraws draws_;
  std::uint8_t* kept_ = nullptr;
  Terms gradients_;
};

class EmbeddingOp final : public Op {
 public:
  EmbeddingOp(Context& context, const Binding& b)
      : context_(context),
        b_(b),
        width_(b.shape.back()),
        count_(b.elements() / width_),
        tokens_(context.array<std::int32_t>(count_)) {}
  void forward(const Pass&) override {
    check(launch_embedding(b_.type, static_cast<const float*>(b_.inputs[0].value), b_.parameters[0].value,
                           b_.output, tokens_, context_.bad_token, count_, vocabulary(), width_,
                           context_.handle()));
  }
  void backward() override {
    float* gradient = b_.parameters[0].gradient;
    if (!b_.parameters[0].adds)
      zero_bytes(gradient, static_cast<std::size_t>(vocabulary() * width_) * sizeof(float), context_.stream);
    check(launch_embedding_gradient(b_.type, b_.output_gradients[0], tokens_, gradient, count_, width_,
                                    context_.handle()));
  }

 private:
  std::int64_t vocabulary() const { return b_.parameters[0].info->shape[0]; }

  Context& context_;
  Binding b_;
  std::int64_t width_, count_;
  std::int32_t* tokens_;
};

}  // namespace

std::unique_ptr<Op> make_pool(Context& context, const Binding& binding, const PoolDesc& desc) {
  return std::make_unique<PoolOp>(context, binding, desc);
}

std::unique_ptr<Op> make_lrn(Context& context, const Binding& binding, const LrnDesc& desc) {
  return std::make_unique<LrnOp>(context, binding, desc);
}

std::unique_ptr<Op> make_dropout(Context& context, const Binding& binding, double probability) {
  return std::make_unique<DropoutOp>(context, binding, probability);
}

std::unique_ptr<Op> make_embedding(Context& context, const Binding& binding) {
  return std::make_unique<EmbeddingOp>(context, binding);
}

}  // namespace lpsgd::cuda
