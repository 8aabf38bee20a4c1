// What the CPU backend's operations share: the oneDNN engine, memory, threads, and one scratchpad.
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

/// Untyped memory of activations as values of T.
template <class T>
T* as(void* p) {
  return static_cast<T*>(p);
}
template <class T>
const T* as(const void* p) {
  return static_cast<const T*>(p);
}

/// make<T>() for the T that `type` stands for.
template <class Make>
auto of_type(DataType type, const Make& make) {
  return type == DataType::f32 ? make.template operator()<float>() : make.template operator()<Bf16>();
}

/// An operation that works row by row: what follows it can hand it its output's gradient part by part, while
/// a part is in the cache.
class RowwiseOp : public Op {
 public:
  /// backward() for the rows from `first` to `last`, whose gradient is `dy`. Once every row has been handed
  /// over, in parts of any order, the next backward() has nothing left to do.
  virtual void backward_rows(std::int64_t first, std::int64_t last, const float* dy) = 0;
};

using Arguments = std::unordered_map<int, dnnl::memory>;

/// What passes between layouts: weights, their gradient, a layer's input or its output, or these two's
/// gradients.
enum class Passing : std::uint8_t { weights, weight_gradients, input, output };

struct Context {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  int threads = 1;
  const Kernels& k = kernels();

  void* allocate(std::int64_t bytes);
  /// Memory described by `md`, from allocate().
  dnnl::memory memory(const dnnl::memory::desc& md);
  /// The one scratchpad, seen as `md`: valid once seal() has run; contents last for one primitive.
  dnnl::memory scratchpad(const dnnl::memory::desc& md) { return scratchpad_.view(md, engine); }
  /// The one place of its kind for values on their way between layouts; contents last from a reorder to the
  /// next.
  dnnl::memory passing(Passing kind, const dnnl::memory::desc& md) {
    return passing_[static_cast<std::size_t>(kind)].view(md, engine);
  }
  void seal();

  /// How many of `rows` rows of float32 make a part that stays in the threads' second-level caches between
  /// two passes over it. At least 256, where there are so many: products of fewer are slower by more than
  /// that gains.
  std::int64_t rows_a_part(std::int64_t rows, std::int64_t width) const {
    constexpr std::int64_t cached_bytes = std::int64_t{512} << 10, least_rows = 256;
    const std::int64_t cached = threads * cached_bytes / (width * static_cast<std::int64_t>(sizeof(float)));
    return std::clamp<std::int64_t>(std::max(cached, least_rows), 1, std::max<std::int64_t>(rows, 1));
  }

  /// Runs body(thread, first, last) for `threads` nearly equal parts of 0..n, on as many threads.
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
  /// Memory that many use in turn, as large as the largest of them needs.
  struct Shared {
    std::size_t bytes = 0;
    std::vector<dnnl::memory> views;
    dnnl::memory view(const dnnl::memory::desc& md, const dnnl::engine& engine);
    void seal(Context& context);
  };

  std::vector<Buffer<std::byte>> buffers_;
  Shared scratchpad_;
  std::array<Shared, 4> passing_;
};

/// A primitive with its arguments, which are final once it has run. Empty ones do nothing.
struct Call {
  dnnl::primitive primitive;
  Arguments arguments;
  mutable std::vector<dnnl_exec_arg_t> list = {};  // dnnl::primitive::execute() makes it anew every time
  void run(const dnnl::stream& stream) const {
    if (!primitive) return;
    if (list.empty())
      for (const auto& [argument, memory] : arguments) list.push_back({argument, memory.get()});
    dnnl::error::wrap_c_api(
        dnnl_primitive_execute(primitive.get(), stream.get(), static_cast<int>(list.size()), list.data()),
        "could not execute a primitive");
  }
};

/// Another place for one of a call's arguments.
inline void point(const Call& call, int argument, const void* data) {
  dnnl::memory memory = call.arguments.at(argument);  // a handle: the call's own is the same memory object
  memory.set_data_handle(const_cast<void*>(data));
}

/// Attributes that leave the scratchpad to us; with `accumulate` results are added to what is there,
/// with `relu` it is applied to them.
dnnl::primitive_attr user_scratchpad(bool relu = false, bool accumulate = false);

/// Values in the layout a primitive prefers: `plain` is where they live, `preferred` may be it.
struct Reordered {
  dnnl::memory preferred;
  Call reorder;  // empty when the layouts are one
};
Reordered to_preferred(Context& context, const dnnl::memory& plain, const dnnl::memory::desc& preferred,
                       Passing kind = Passing::weights);
/// As to_preferred, but the copy is kept until the reorder runs again.
Reordered to_kept(Context& context, const dnnl::memory& plain, const dnnl::memory::desc& preferred);
Reordered from_preferred(Context& context, const dnnl::memory& plain, const dnnl::memory::desc& preferred,
                         Passing kind = Passing::weight_gradients);
/// As from_preferred's reorder, but it adds to what is there.
Call adding(Context& context, const Reordered& from_preferred, const dnnl::memory& plain);

/// A oneDNN memory over values that we own. const is dropped only because dnnl::memory knows no const.
dnnl::memory view(const Context& context, const dnnl::memory::desc& md, const void* data);

std::unique_ptr<Op> make_conv(Context& context, const Binding& binding, const ConvDesc& desc);
/// A convolution of single pixels, without bias, in float32: a RowwiseOp.
std::unique_ptr<Op> make_pixel_conv(Context& context, const Binding& binding);
/// One product over the rows of the input, whose last dimension it replaces.
std::unique_ptr<Op> make_dense(Context& context, const Binding& binding);
std::unique_ptr<Op> make_batch_norm(Context& context, const Binding& binding, const BatchNormDesc& desc);
std::unique_ptr<Op> make_activation(Context& context, const Binding& binding, Activation kind);
std::unique_ptr<Op> make_add(Context& context, const Binding& binding);
std::unique_ptr<Op> make_concat(Context& context, const Binding& binding);
std::unique_ptr<Op> make_embedding(Context& context, const Binding& binding);
std::unique_ptr<Op> make_lstm(Context& context, const Binding& binding, const LstmDesc& desc);
std::unique_ptr<Op> make_dropout(Context& context, const Binding& binding, double probability);
std::unique_ptr<Op> make_lrn(Context& context, const Binding& binding, const LrnDesc& desc);
std::unique_ptr<Op> make_sum(Context& context, DataType type, void* into, std::vector<const void*> terms,
                             const void* mask, std::int64_t n);
std::unique_ptr<Op> make_pool(Context& context, const Binding& binding, const PoolDesc& desc);
std::unique_ptr<Op> make_channels_first(Context& context, const Binding& binding);
std::unique_ptr<LossOp> make_loss(Context& context, DataType type, const void* logits, void* gradient,
                                  std::int64_t batch, std::int64_t frames, std::int64_t classes);

}  // namespace lpsgd::cpu
