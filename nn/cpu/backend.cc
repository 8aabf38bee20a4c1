// The CPU backend: oneDNN for convolutions and matrix products, and loops of our own for what is bound by
// memory.
#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "core/error.h"
#include "nn/cpu/context.h"

namespace lpsgd {
namespace cpu {

void* Context::allocate(std::int64_t bytes) {
  buffers_.emplace_back(static_cast<std::size_t>(bytes));
  return buffers_.back().data();
}

dnnl::memory Context::memory(const dnnl::memory::desc& md) {
  return {md, engine, allocate(static_cast<std::int64_t>(md.get_size()))};
}

dnnl::memory Context::Shared::view(const dnnl::memory::desc& md, const dnnl::engine& engine) {
  bytes = std::max(bytes, md.get_size());
  dnnl::memory m(md, engine, DNNL_MEMORY_NONE);
  views.push_back(m);
  return m;
}

void Context::Shared::allocate(Context& context) {
  void* memory = context.allocate(static_cast<std::int64_t>(bytes));
  for (dnnl::memory& m : views) m.set_data_handle(memory);
  views.clear();
}

void Context::allocate_shared() {
  scratchpad_.allocate(*this);
  for (Shared& buffer : reorder_buffers_) buffer.allocate(*this);
  scratch_floats_ = (scratch_floats_ + 15) / 16 * 16;
  scratch_ = Buffer<float>(static_cast<std::size_t>(threads * scratch_floats_));
}

dnnl::primitive_attr user_scratchpad(bool relu, bool accumulate) {
  dnnl::primitive_attr attr;
  dnnl::post_ops ops;
  if (accumulate) ops.append_sum();
  if (relu) ops.append_eltwise(1.0f, dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
  if (ops.len() > 0) attr.set_post_ops(ops);
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

dnnl::memory view(const Context& context, const dnnl::memory::desc& md, const void* data) {
  return {md, context.engine, const_cast<void*>(data)};
}

namespace {

Call reorder_call(Context& context, const dnnl::memory& from, const dnnl::memory& to) {
  const dnnl::reorder::primitive_desc pd(from, to, user_scratchpad());
  return {dnnl::reorder(pd),
          {{DNNL_ARG_FROM, from},
           {DNNL_ARG_TO, to},
           {DNNL_ARG_SCRATCHPAD, context.scratchpad(pd.scratchpad_desc())}}};
}

}  // namespace

Reordered to_preferred(Context& context, const dnnl::memory& plain, const dnnl::memory::desc& preferred) {
  if (plain.get_desc() == preferred) return {plain, {}};
  dnnl::memory m = context.reorder_buffer(ReorderUse::weights, preferred);
  return {m, reorder_call(context, plain, m)};
}

Reordered to_persistent(Context& context, const dnnl::memory& plain, const dnnl::memory::desc& preferred) {
  if (plain.get_desc() == preferred) return {plain, {}};
  dnnl::memory m = context.memory(preferred);
  return {m, reorder_call(context, plain, m)};
}

Reordered from_preferred(Context& context, const dnnl::memory& plain, const dnnl::memory::desc& preferred) {
  if (plain.get_desc() == preferred) return {plain, {}};
  dnnl::memory m = context.reorder_buffer(ReorderUse::weights, preferred);
  return {m, reorder_call(context, m, plain)};
}

namespace {

class CpuBackend final : public Backend {
 public:
  CpuBackend(int threads, Compute compute) {
    context_.threads = std::max(1, threads);
    if (const auto why = cpu_unsupported(compute)) throw DeviceError("compute " + *why);
  }

  void* allocate(std::int64_t bytes) override { return context_.allocate(bytes); }
  std::unique_ptr<PixelInput> pixel_input(const PixelDesc& desc) override {
    return make_pixel_input(context_, desc);
  }
  void upload(void* to, DataType type, std::span<const float> from, Event* read) override {
    with_type(type, [&]<class T>() {
      context_.parallel(static_cast<std::int64_t>(from.size()),
                        [&](int, std::int64_t first, std::int64_t last) {
                          context_.k.of<T>().narrow(from.data() + first, as<T>(to) + first, last - first);
                        });
    });
    if (read) read->record(StreamView());
  }
  void download(std::span<float> to, DataType type, const void* from) override {
    with_type(type, [&]<class T>() {
      context_.k.of<T>().widen(as<T>(from), to.data(), static_cast<std::int64_t>(to.size()));
    });
  }
  void clear_tails(const Pass& pass, DataType type, void* values, std::int64_t frames,
                   std::int64_t width) override {
    for (std::size_t n = 0; n < pass.lengths.size(); ++n) {
      const std::int64_t first = static_cast<std::int64_t>(n) * frames, length = pass.lengths[n];
      std::memset(static_cast<std::byte*>(values) + (first + length) * width * size_of(type), 0,
                  static_cast<std::size_t>((frames - length) * width * size_of(type)));
    }
  }
  void finish_planning() override { context_.allocate_shared(); }
  void prepare_thread() override {
    if (omp_get_max_threads() != context_.threads) omp_set_num_threads(context_.threads);
  }

  std::unique_ptr<Op> conv(const Binding& b, const ConvDesc& desc) override {
    return guarded("convolution", [&] { return make_conv(context_, b, desc); });
  }
  std::unique_ptr<Op> dense(const Binding& b) override {
    return guarded("dense", [&] { return make_dense(context_, b); });
  }
  std::unique_ptr<Op> batch_norm(const Binding& b, const BatchNormDesc& desc) override {
    return make_batch_norm(context_, b, desc);
  }
  std::unique_ptr<Op> activation(const Binding& b, Activation kind) override {
    return make_activation(context_, b, kind);
  }
  std::unique_ptr<Op> scale(const Binding& b, double factor) override {
    return make_scale(context_, b, factor);
  }
  std::unique_ptr<Op> multiply(const Binding& b) override { return make_multiply(context_, b); }
  std::unique_ptr<Op> add(const Binding& b) override { return make_add(context_, b); }
  std::unique_ptr<Op> pool(const Binding& b, const PoolDesc& desc) override {
    return make_pool(context_, b, desc);
  }
  std::unique_ptr<Op> channels_first(const Binding& b) override { return make_channels_first(context_, b); }
  std::unique_ptr<Op> lstm(const Binding& b, const LstmDesc& desc) override {
    return guarded("LSTM", [&] { return make_lstm(context_, b, desc); });
  }
  std::unique_ptr<Op> embedding(const Binding& b) override { return make_embedding(context_, b); }
  std::unique_ptr<Op> layer_norm(const Binding& b, const LayerNormDesc& desc) override {
    return make_layer_norm(context_, b, desc);
  }
  std::unique_ptr<Op> group_norm(const Binding& b, const GroupNormDesc& desc) override {
    return make_group_norm(context_, b, desc);
  }
  std::unique_ptr<Op> attention(const Binding& b, const AttentionDesc& desc) override {
    return make_attention(context_, b, desc);
  }
  std::unique_ptr<Op> position(const Binding& b) override { return make_position(context_, b); }
  std::unique_ptr<Op> class_token(const Binding& b) override { return make_class_token(context_, b); }
  std::unique_ptr<Op> select_frame(const Binding& b, std::int64_t index) override {
    return make_select_frame(context_, b, index);
  }
  std::unique_ptr<Op> concat(const Binding& b) override { return make_concat(context_, b); }
  std::unique_ptr<Op> dropout(const Binding& b, double probability) override {
    return make_dropout(context_, b, probability);
  }
  std::unique_ptr<Op> lrn(const Binding& b, const LrnDesc& desc) override {
    return make_lrn(context_, b, desc);
  }
  std::unique_ptr<Op> sum(DataType type, void* into, std::vector<const void*> terms, const void* mask,
                          std::int64_t elements) override {
    return make_sum(context_, type, into, std::move(terms), mask, elements);
  }
  std::unique_ptr<LossOp> softmax_cross_entropy(DataType type, const void* logits, void* gradient,
                                                const LossDesc& desc) override {
    return make_loss(context_, type, logits, gradient, desc);
  }

 private:
  template <class Make>
  std::unique_ptr<Op> guarded(const char* what, const Make& make) {
    prepare_thread();  // oneDNN plans for the thread's current number of threads
    try {
      return make();
    } catch (const dnnl::error& e) {
      throw DeviceError(fmt::format("oneDNN cannot run a {}: {}", what, e.what()));
    }
  }

  Context context_;
};

}  // namespace
}  // namespace cpu

std::optional<std::string> cpu_unsupported(Compute compute) {
  if (compute == Compute::fp32) return std::nullopt;
  if (compute == Compute::tf32) return "tf32 is an arithmetic of GPUs; allowed on the CPU: fp32, bf16";
  // oneDNN emulates bfloat16 on other machines with AVX-512, many times slower than float32.
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto needed = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  if ((isa & needed) == needed) return std::nullopt;
  return "bf16 needs a processor with AVX512-BF16 or AMX, and this one has neither; allowed: fp32";
}

std::unique_ptr<Backend> make_cpu_backend(int threads, Compute compute) {
  return std::make_unique<cpu::CpuBackend>(threads, compute);
}

}  // namespace lpsgd
