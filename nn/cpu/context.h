// What the operations of the CPU backend share: the oneDNN engine, memory, threads and scratch memory.
#pragma once

#include <omp.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <dnnl.hpp>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/buffer.h"
#include "nn/cpu/kernels.h"
#include "nn/ops.h"

namespace lpsgd::cpu {

constexpr auto f32 = dnnl::memory::data_type::f32;

constexpr dnnl::memory::data_type dnnl_type(DataType type) {
  return type == DataType::f32 ? f32 : dnnl::memory::data_type::bf16;
}

/// The memory of activations as values of T.
template <class T>
T* as(void* p) {
  return static_cast<T*>(p);
}
template <class T>
const T* as(const void* p) {
  return static_cast<const T*>(p);
}

constexpr std::size_t size(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

/// Calls make<T>() with the T of `type`.
template <class Make>
auto with_type(DataType type, const Make& make) {
  return type == DataType::f32 ? make.template operator()<float>() : make.template operator()<Bf16>();
}

/// An operation whose backward can run part by part. The operation behind it hands it each part of its
/// output's gradient while the part is in the cache.
class RowwiseOp : public Op {
 public:
  /// The backward of the rows from `first` to `last`, for which the output's gradient is `dy`. The parts may
  /// come in any order. After every row has been handed over, the next backward() has nothing left to do.
  virtual void backward_rows(std::int64_t first, std::int64_t last, const float* dy) = 0;
};

using Arguments = std::unordered_map<int, dnnl::memory>;

/// What operations need while they run shares a buffer for each use: `weights` is for weights, and oneDNN's
/// gradients of them, in another layout or transformed; `weight_gradients` for sums of transformed ones;
/// `input` and `output` for parts of activations or their gradients, copied or transformed.
enum class ReorderUse : std::uint8_t { weights, weight_gradients, input, output };

struct Context {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  int threads = 1;
  const Kernels& k = kernels();

  void* allocate(std::int64_t bytes);
  /// Memory of allocate() that is described by `md`.
  dnnl::memory memory(const dnnl::memory::desc& md);
  /// The one scratchpad, as memory described by `md`. It has no memory until allocate_shared(). Its contents
  /// are valid during one primitive.
  dnnl::memory scratchpad(const dnnl::memory::desc& md) { return scratchpad_.view(md, engine); }
  /// The one buffer for copies of this use, as memory described by `md`. It has no memory until
  /// allocate_shared(). Its contents are valid until the next reorder of the same use.
  dnnl::memory reorder_buffer(ReorderUse use, const dnnl::memory::desc& md) {
    return reorder_buffers_[static_cast<std::size_t>(use)].view(md, engine);
  }
  void allocate_shared();

  /// Memory of each thread, for what an operation needs while it runs: at least so many floats. Called while
  /// operations are planned.
  void need_scratch(std::int64_t floats) { scratch_floats_ = std::max(scratch_floats_, floats); }
  float* scratch(int thread) { return scratch_.data() + thread * scratch_floats_; }

  /// How many of `rows` rows of float32 values form a part that stays in the threads' second-level caches
  /// between two passes over it. At least 256, if there are so many: with fewer, products become slower by
  /// more than the cache gains.
  std::int64_t rows_per_part(std::int64_t rows, std::int64_t width) const {
    constexpr std::int64_t cached_bytes = std::int64_t{512} << 10, min_rows = 256;
    const std::int64_t cached = threads * cached_bytes / (width * static_cast<std::int64_t>(sizeof(float)));
    return std::clamp<std::int64_t>(std::max(cached, min_rows), 1, std::max<std::int64_t>(rows, 1));
  }

  /// Calls body(thread, first, last) for `threads` nearly equal parts of 0..n, each on its own thread.
  template <class Body>
  void parallel(std::int64_t n, const Body& body) const {
    const std::int64_t parts = std::clamp<std::int64_t>(n, 1, threads);
    if (parts == 1) {
      body(0, std::int64_t{0}, n);
      return;
    }
#pragma omp parallel for schedule(static, 1) num_threads(static_cast<int>(parts))
    for (std::int64_t t = 0; t < parts; ++t) body(static_cast<int>(t), n * t / parts, n * (t + 1) / parts);
  }

 private:
  /// Memory that several users share, one at a time. It is as large as its largest view.
  struct Shared {
    std::size_t bytes = 0;
    std::vector<dnnl::memory> views;
    dnnl::memory view(const dnnl::memory::desc& md, const dnnl::engine& engine);
    void allocate(Context& context);
  };

  std::vector<Buffer<std::byte>> buffers_;
  Buffer<float> scratch_;
  std::int64_t scratch_floats_ = 0;  // of each thread
  Shared scratchpad_;
  std::array<Shared, 4> reorder_buffers_;
};

/// A primitive with its arguments, which must not be added to once it has run. A call without a primitive
/// does nothing.
struct Call {
  dnnl::primitive primitive;
  Arguments arguments;
  mutable std::vector<dnnl_exec_arg_t> list = {};  // dnnl::primitive::execute() would build it on every call
  void run(const dnnl::stream& stream) const {
    if (!primitive) return;
    if (list.empty())
      for (const auto& [argument, memory] : arguments) list.push_back({argument, memory.get()});
    dnnl::error::wrap_c_api(
        dnnl_primitive_execute(primitive.get(), stream.get(), static_cast<int>(list.size()), list.data()),
        "could not execute a primitive");
  }
};

/// Makes an argument of the call use `data`.
inline void set_argument(const Call& call, int argument, const void* data) {
  dnnl::memory memory = call.arguments.at(argument);  // a handle to the memory object that the call uses
  memory.set_data_handle(const_cast<void*>(data));
}

/// Attributes of primitives that use our scratchpad. With `relu` the result goes through a ReLU. With
/// `accumulate` it is added to the values in the destination.
dnnl::primitive_attr user_scratchpad(bool relu = false, bool accumulate = false);

/// Values in the layout that a primitive prefers, and the reorder between that and our layout. If the layouts
/// are equal, `preferred` is our memory and `reorder` does nothing.
struct Reordered {
  dnnl::memory preferred;
  Call reorder;
};
/// For weights that a primitive reads. The copy lies in the shared buffer of weights.
Reordered to_preferred(Context& context, const dnnl::memory& plain, const dnnl::memory::desc& preferred);
/// As to_preferred(), but the copy has memory of its own.
Reordered to_persistent(Context& context, const dnnl::memory& plain, const dnnl::memory::desc& preferred);
/// For a gradient of weights that a primitive writes, in that same buffer.
Reordered from_preferred(Context& context, const dnnl::memory& plain, const dnnl::memory::desc& preferred);

/// Our values as a oneDNN memory. It drops const because dnnl::memory has no const version.
dnnl::memory view(const Context& context, const dnnl::memory::desc& md, const void* data);

std::unique_ptr<Op> make_conv(Context& context, const Binding& binding, const ConvDesc& desc);
/// A convolution of single pixels in float32, without bias. It is a RowwiseOp.
std::unique_ptr<Op> make_pixel_conv(Context& context, const Binding& binding);
/// One matrix product that maps the last dimension of the input.
std::unique_ptr<Op> make_dense(Context& context, const Binding& binding);
std::unique_ptr<Op> make_batch_norm(Context& context, const Binding& binding, const BatchNormDesc& desc);
std::unique_ptr<Op> make_activation(Context& context, const Binding& binding, Activation kind);
std::unique_ptr<Op> make_scale(Context& context, const Binding& binding, double factor);
std::unique_ptr<Op> make_multiply(Context& context, const Binding& binding);
std::unique_ptr<Op> make_add(Context& context, const Binding& binding);
std::unique_ptr<Op> make_concat(Context& context, const Binding& binding);
std::unique_ptr<Op> make_embedding(Context& context, const Binding& binding);
std::unique_ptr<Op> make_lstm(Context& context, const Binding& binding, const LstmDesc& desc);
std::unique_ptr<Op> make_dropout(Context& context, const Binding& binding, double probability);
std::unique_ptr<Op> make_lrn(Context& context, const Binding& binding, const LrnDesc& desc);
std::unique_ptr<Op> make_sum(Context& context, DataType type, void* into, std::vector<const void*> terms,
                             const void* mask, std::int64_t n);
std::unique_ptr<Op> make_layer_norm(Context& context, const Binding& binding, const LayerNormDesc& desc);
std::unique_ptr<Op> make_group_norm(Context& context, const Binding& binding, const GroupNormDesc& desc);
std::unique_ptr<Op> make_attention(Context& context, const Binding& binding, const AttentionDesc& desc);
std::unique_ptr<Op> make_position(Context& context, const Binding& binding);
std::unique_ptr<Op> make_class_token(Context& context, const Binding& binding);
std::unique_ptr<Op> make_select_frame(Context& context, const Binding& binding, std::int64_t index);
std::unique_ptr<Op> make_pool(Context& context, const Binding& binding, const PoolDesc& desc);
std::unique_ptr<Op> make_channels_first(Context& context, const Binding& binding);
std::unique_ptr<PixelInput> make_pixel_input(Context& context, const PixelDesc& desc);
std::unique_ptr<LossOp> make_loss(Context& context, DataType type, const void* logits, void* gradient,
                                  const LossDesc& desc);

/// Pointers, each advanced to the part of a thread. They are stored, so that a step allocates nothing.
template <class T>
class Terms {
 public:
  Terms(const Context& context, const std::vector<const void*>& terms) {
    for (const void* term : terms) terms_.push_back(as<T>(term));
    moved_.assign(static_cast<std::size_t>(context.threads), terms_);
  }
  const T* const* at(int thread, std::int64_t offset) {
    std::vector<const T*>& out = moved_[static_cast<std::size_t>(thread)];
    for (std::size_t i = 0; i < terms_.size(); ++i) out[i] = terms_[i] + offset;
    return out.data();
  }
  int count() const { return static_cast<int>(terms_.size()); }

 private:
  std::vector<const T*> terms_;
  std::vector<std::vector<const T*>> moved_;
};

}  // namespace lpsgd::cpu
