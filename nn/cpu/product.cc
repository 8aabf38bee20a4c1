#include "nn/cpu/product.h"

namespace lpsgd::cpu {

using dnnl::memory;

namespace {

constexpr auto plain_tag = memory::format_tag::ab;

}  // namespace

Product::Product(Context& context, const ProductDesc& d, const float* weights, const float* bias)
    : context_(context) {
  const auto type = dnnl_type(d.type);
  const memory::desc src({d.rows, d.in}, type, plain_tag), dst({d.rows, d.out}, dnnl_type(d.sums), plain_tag),
      diff_dst({d.rows, d.out}, type, plain_tag);
  const memory::desc plain({d.out, d.in}, f32, plain_tag);
  // For float32 the arena's layout is at least as fast as oneDNN's with its reorders, and needs no copies of
  // weights and gradients. (Measured with oneDNN 2.6, from 4 rows to 7,680: AlexNet with a batch of 128, both
  // LSTMs.) But in forward the few rows of a recurrent product take half the time with oneDNN's layout.
  const auto tag = type == f32 ? plain_tag : memory::format_tag::any;
  const memory::desc any({d.out, d.in}, type, tag);
  const memory::desc forward_any({d.out, d.in}, type, d.repeated ? memory::format_tag::any : tag);
  const memory::desc bias_desc = d.bias ? memory::desc({d.out}, f32, memory::format_tag::a) : memory::desc();
  const dnnl::primitive_attr attr = user_scratchpad();
  const auto unset = [&](const memory::desc& md) { return memory(md, context.engine, DNNL_MEMORY_NONE); };
  const memory plain_weights = view(context, plain, weights);

  const dnnl::inner_product_forward::primitive_desc forward(
      {dnnl::prop_kind::forward_training, src, forward_any, bias_desc, dst},
      user_scratchpad(d.relu, d.accumulate), context.engine);
  dnnl::inner_product_backward_data::primitive_desc data;
  if (d.data) data = {{src, any, diff_dst}, attr, context.engine, forward};
  const auto copy = [&](const memory::desc& preferred) {
    return d.shared_copy ? to_preferred(context, plain_weights, preferred)
                         : to_persistent(context, plain_weights, preferred);
  };
  const bool shared = !d.shared_copy && d.forward && d.data && data.weights_desc() == forward.weights_desc();
  if (d.forward) {
    forward_weights_ = copy(forward.weights_desc());
    forward_ = {dnnl::inner_product_forward(forward),
                {{DNNL_ARG_SRC, unset(src)},
                 {DNNL_ARG_WEIGHTS, forward_weights_.preferred},
                 {DNNL_ARG_DST, unset(dst)},
                 {DNNL_ARG_SCRATCHPAD, context.scratchpad(forward.scratchpad_desc())}}};
    if (d.bias) forward_.arguments[DNNL_ARG_BIAS] = view(context, bias_desc, bias);
  }
  if (d.data) {
    data_weights_ = shared ? Reordered{forward_weights_.preferred, {}} : copy(data.weights_desc());
    data_ = {dnnl::inner_product_backward_data(data),
             {{DNNL_ARG_DIFF_DST, unset(diff_dst)},
              {DNNL_ARG_WEIGHTS, data_weights_.preferred},
              {DNNL_ARG_DIFF_SRC, unset(src)},
              {DNNL_ARG_SCRATCHPAD, context.scratchpad(data.scratchpad_desc())}}};
  }
  if (d.gradient) {
    const dnnl::inner_product_backward_weights::primitive_desc gradient({src, plain, bias_desc, diff_dst},
                                                                        attr, context.engine, forward);
    gradient_ = {dnnl::inner_product_backward_weights(gradient),
                 {{DNNL_ARG_SRC, unset(src)},
                  {DNNL_ARG_DIFF_DST, unset(diff_dst)},
                  {DNNL_ARG_DIFF_WEIGHTS, unset(plain)},
                  {DNNL_ARG_SCRATCHPAD, context.scratchpad(gradient.scratchpad_desc())}}};
    if (d.bias) gradient_.arguments[DNNL_ARG_DIFF_BIAS] = unset(bias_desc);
  }
}

void Product::forward(const void* x, void* y) {
  set_argument(forward_, DNNL_ARG_SRC, x);
  set_argument(forward_, DNNL_ARG_DST, y);
  forward_.run(context_.stream);
}

void Product::input_gradient(const void* dy, void* dx) {
  set_argument(data_, DNNL_ARG_DIFF_DST, dy);
  set_argument(data_, DNNL_ARG_DIFF_SRC, dx);
  data_.run(context_.stream);
}

WeightGradient::WeightGradient(Context& context, std::int64_t rows, std::int64_t in, std::int64_t out,
                               DataType type)
    : context_(context) {
  // As matrices: (out, rows) (rows, in), added to the destination.
  const memory::desc dy({out, rows}, dnnl_type(type), memory::format_tag::ba),
      x({rows, in}, dnnl_type(type), plain_tag), dw({out, in}, f32, plain_tag);
  const dnnl::matmul::primitive_desc pd({dy, x, dw}, user_scratchpad(false, true), context.engine);
  const auto unset = [&](const memory::desc& md) { return memory(md, context.engine, DNNL_MEMORY_NONE); };
  call_ = {dnnl::matmul(pd),
           {{DNNL_ARG_SRC, unset(dy)},
            {DNNL_ARG_WEIGHTS, unset(x)},
            {DNNL_ARG_DST, unset(dw)},
            {DNNL_ARG_SCRATCHPAD, context.scratchpad(pd.scratchpad_desc())}}};
}

void WeightGradient::add(const void* x, const void* dy, float* dw) {
  set_argument(call_, DNNL_ARG_SRC, dy);
  set_argument(call_, DNNL_ARG_WEIGHTS, x);
  set_argument(call_, DNNL_ARG_DST, dw);
  call_.run(context_.stream);
}

void Product::weight_gradient(const void* x, const void* dy, float* dw, float* db) {
  set_argument(gradient_, DNNL_ARG_SRC, x);
  set_argument(gradient_, DNNL_ARG_DIFF_DST, dy);
  set_argument(gradient_, DNNL_ARG_DIFF_WEIGHTS, dw);
  if (gradient_.arguments.contains(DNNL_ARG_DIFF_BIAS)) set_argument(gradient_, DNNL_ARG_DIFF_BIAS, db);
  gradient_.run(context_.stream);
}

}  // namespace lpsgd::cpu
