// Attention, head by head, each on one thread. The scores of a block of queries stay in the caches and are
// never in memory as a whole (Dao and others 2022): backward computes them again from the queries and keys,
// and the weights from them and each row's logarithm of the sum. Frames behind a sequence's end are left out.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "nn/cpu/context.h"
#include "nn/cpu/sgemm.h"

namespace lpsgd::cpu {
namespace {

template <class T>
class AttentionOp final : public Op {
 public:
  AttentionOp(Context& context, const Binding& b, const AttentionDesc& desc)
      : context_(context),
        k_(context.k.of<T>()),
        b_(b),
        heads_(desc.heads),
        causal_(desc.causal),
        frames_(b.shape[0]),
        features_(b.shape[1]),
        width_(features_ / heads_),
        block_(block_of(frames_)),
        scale_(1 / std::sqrt(static_cast<float>(width_))),
        drops_(b.training && desc.dropout > 0),
        draws_(b.random, desc.dropout) {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const bool joined = b.inputs.size() == 1;
      const InputView& in = b.inputs[joined ? 0 : i];
      const std::int64_t column = joined ? static_cast<std::int64_t>(i) * features_ : 0;
      T* const gradient = as<T>(in.gradient);
      parts_[i] = {as<T>(in.value) + column, gradient ? gradient + column : nullptr, in.shape[1]};
    }
    has_backward_ = b.training && std::ranges::any_of(parts_, [](const Part& p) { return p.gradient; });
    lengths_.assign(size(b.batch), frames_);
    if (has_backward_) log_sums_ = Buffer<float>(size(b.batch * heads_ * frames_));
    context.need_scratch(scratch_floats());
  }

  void forward(const Pass& pass) override {
    dropping_ = drops_ && pass.training;
    step_ = pass.step;
    first_ = draws_.first + static_cast<std::uint32_t>(pass.first);
    for (std::int64_t n = 0; n < b_.batch; ++n) lengths_[size(n)] = pass.length(n, frames_);
    context_.parallel(b_.batch * heads_, [&](int thread, std::int64_t first, std::int64_t last) {
      const Scratch s = scratch(context_.scratch(thread));
      for (std::int64_t head = first; head < last; ++head) forward_head(head, s);
    });
  }

  void backward() override {
    if (!has_backward_) return;
    context_.parallel(b_.batch * heads_, [&](int thread, std::int64_t first, std::int64_t last) {
      const Scratch s = scratch(context_.scratch(thread));
      for (std::int64_t head = first; head < last; ++head) backward_head(head, s);
    });
  }

 private:
  enum Which : std::uint8_t { queries, keys, values };
  struct Part {
    const T* value = nullptr;
    T* gradient = nullptr;
    std::int64_t stride = 0;  // of rows
  };
  /// A thread's memory. What holds bfloat16 values as float32 is null for float32.
  struct Scratch {
    float *weights = nullptr, *weights_gradient = nullptr;  // of a block's queries: (block, frames)
    std::array<float*, 3> part = {};                        // (frames, width)
    float* output = nullptr;                                // (block, width): the output, or its gradient
    std::array<float*, 3> gradient = {};                    // (frames, width)
    float* factors = nullptr;  // (frames): of a query's weights, if some are dropped
  };
  static constexpr bool is_float = std::is_same_v<T, float>;

  Scratch scratch(float* memory) const {
    Scratch s;
    const auto take = [&](std::int64_t rows, std::int64_t columns) {
      return std::exchange(memory, memory + rows * columns);
    };
    s.weights = take(block_, frames_);
    if constexpr (!is_float) {
      for (float*& p : s.part) p = take(frames_, width_);
      s.output = take(block_, width_);
    }
    if (drops_) s.factors = take(1, frames_);
    if (!has_backward_) return s;
    s.weights_gradient = take(block_, frames_);
    for (float*& g : s.gradient) g = take(frames_, width_);
    return s;
  }
  std::int64_t scratch_floats() const {
    const std::int64_t of_block = block_ * frames_, of_head = 3 * frames_ * width_;
    return of_block + (drops_ ? frames_ : 0) + (is_float ? 0 : of_head + block_ * width_) +
           (has_backward_ ? of_block + of_head : 0);
  }

  /// Queries of a block: their scores take at most 256 KiB, in the second-level cache.
  static std::int64_t block_of(std::int64_t frames) {
    constexpr std::int64_t cached = 65536, most = 128, least = 8;
    const std::int64_t queries_cached = std::clamp<std::int64_t>(cached / frames, least, most);
    const std::int64_t blocks = (frames + queries_cached - 1) / queries_cached;
    return (frames + blocks - 1) / blocks;
  }

  std::int64_t length(std::int64_t head) const { return lengths_[size(head / heads_)]; }
  /// Keys that the queries before `end` see.
  std::int64_t seen(std::int64_t end, std::int64_t length) const { return causal_ ? end : length; }

  /// The head's first value in rows of so many values.
  template <class P>
  P at_head(P rows, std::int64_t head, std::int64_t stride) const {
    return rows + head / heads_ * frames_ * stride + head % heads_ * width_;
  }

  /// Rows of a head as float32: where they are, or copied to `to`.
  MatrixView as_floats(const T* rows, std::int64_t stride, std::int64_t count, float* to) const {
    if constexpr (is_float) {
      return {rows, stride};
    } else {
      for (std::int64_t r = 0; r < count; ++r) k_.widen(rows + r * stride, to + r * width_, width_);
      return {to, width_};
    }
  }
  MatrixView part(Which which, std::int64_t head, const Scratch& s) const {
    const Part& p = parts_[which];
    return as_floats(at_head(p.value, head, p.stride), p.stride, length(head), s.part[which]);
  }
  static MatrixView from_row(MatrixView m, std::int64_t row) {
    return {m.data + row * m.stride, m.stride, m.transposed};
  }
  static MatrixView transposed(MatrixView m) { return {m.data, m.stride, true}; }

  /// The weights of the queries from `first` to `end`, rows of as many values as the last query sees keys.
  /// Keys that a query does not see have 0. In training a first call keeps the logarithms of the sums.
  void weights(std::int64_t head, std::int64_t first, std::int64_t end, std::int64_t shown, MatrixView q,
               MatrixView k, bool again, float* to) {
    sgemm(end - first, shown, width_, from_row(q, first), transposed(k), to, shown);
    float* const log_sums = has_backward_ ? log_sums_.data() + head * frames_ : nullptr;
    for (std::int64_t t = first; t < end; ++t, to += shown) {
      const std::int64_t own = causal_ ? t + 1 : shown;
      if (again) {
        context_.k.softmax_weights_again(to, own, scale_, log_sums[t]);
      } else {
        const float log_sum = context_.k.softmax_weights(to, own, scale_);
        if (log_sums) log_sums[t] = log_sum;
      }
      std::fill(to + own, to + shown, 0.0f);
    }
  }

  /// Which of the first `count` weights of a query are dropped.
  void draw(std::int64_t head, std::int64_t query, std::int64_t count, float* factors) const {
    const std::uint32_t position = first_ + static_cast<std::uint32_t>(head / heads_);
    context_.k.dropout_factors(draws_, DropoutDraws::first_block(head % heads_, query, frames_), position,
                               step_, count, factors);
  }

  void drop(const float* factors, float* row, std::int64_t count) const {
    const float* const term = row;
    context_.k.f32.drop(factors, &term, 1, row, count);
  }

  void forward_head(std::int64_t head, const Scratch& s) {
    const std::int64_t count = length(head);
    const MatrixView q = part(queries, head, s), k = part(keys, head, s), v = part(values, head, s);
    T* const output = at_head(as<T>(b_.output), head, features_);
    for (std::int64_t first = 0; first < count; first += block_) {
      const std::int64_t end = std::min(first + block_, count), shown = seen(end, count);
      weights(head, first, end, shown, q, k, false, s.weights);
      for (std::int64_t r = 0; dropping_ && r < end - first; ++r) {
        draw(head, first + r, shown, s.factors);
        float* const row = s.weights + r * shown;
        drop(s.factors, row, shown);
      }
      const MatrixView p{s.weights, shown};
      T* const rows = output + first * features_;
      if constexpr (is_float) {
        sgemm(end - first, width_, shown, p, v, rows, features_);
      } else {
        sgemm(end - first, width_, shown, p, v, s.output, width_);
        narrow_rows(s.output, end - first, rows, features_);
      }
    }
    clear_rows(output, count, features_);
  }

  void backward_head(std::int64_t head, const Scratch& s) {
    const std::int64_t count = length(head);
    const MatrixView q = part(queries, head, s), k = part(keys, head, s), v = part(values, head, s);
    for (float* g : s.gradient) std::fill_n(g, count * width_, 0.0f);
    const T* const output_gradient = at_head(as<T>(b_.output_gradients[0]), head, features_);
    for (std::int64_t first = 0; first < count; first += block_) {
      const std::int64_t end = std::min(first + block_, count), rows = end - first, shown = seen(end, count);
      weights(head, first, end, shown, q, k, true, s.weights);
      const MatrixView p{s.weights, shown}, dp{s.weights_gradient, shown};
      const MatrixView dy = as_floats(output_gradient + first * features_, features_, rows, s.output);
      const auto add = [&](Which to, std::int64_t row, std::int64_t m, std::int64_t inner, MatrixView a,
                           MatrixView b) {
        sgemm(m, width_, inner, a, b, s.gradient[to] + row * width_, width_, true);
      };
      sgemm(rows, shown, width_, dy, transposed(v), s.weights_gradient, shown);
      for (std::int64_t r = 0; r < rows; ++r) {
        float *const row = s.weights + r * shown, *const gradient = s.weights_gradient + r * shown;
        if (dropping_) {
          draw(head, first + r, shown, s.factors);
          drop(s.factors, gradient, shown);
        }
        context_.k.softmax_weights_gradient(row, gradient, shown, scale_);  // 0 where the weight is 0
        if (dropping_) drop(s.factors, row, shown);
      }
      add(values, 0, shown, rows, transposed(p), dy);
      add(queries, first, rows, shown, dp, k);
      add(keys, 0, shown, rows, transposed(dp), from_row(q, first));
    }
    for (const Which which : {queries, keys, values}) {
      const Part& p = parts_[which];
      if (p.gradient == nullptr) continue;
      T* const to = at_head(p.gradient, head, p.stride);
      narrow_rows(s.gradient[which], count, to, p.stride);
      clear_rows(to, count, p.stride);
    }
  }

  void narrow_rows(const float* from, std::int64_t count, T* to, std::int64_t stride) const {
    for (std::int64_t r = 0; r < count; ++r) k_.narrow(from + r * width_, to + r * stride, width_);
  }
  /// Writes zeros to the head's rows behind the end of its sequence.
  void clear_rows(T* rows, std::int64_t count, std::int64_t stride) const {
    for (std::int64_t r = count; r < frames_; ++r) std::fill_n(rows + r * stride, width_, T{});
  }

  Context& context_;
  const ActivationKernels<T>& k_;
  Binding b_;
  std::int64_t heads_;
  bool causal_, has_backward_ = false;
  std::int64_t frames_, features_, width_, block_;
  float scale_;
  bool drops_, dropping_ = false;  // weights, in training; in the last pass
  DropoutDraws draws_;
  std::uint32_t step_ = 0, first_ = 0;  // of the last pass: step, position of its first sample
  std::array<Part, 3> parts_;
  std::vector<std::int64_t> lengths_;  // of the last pass
  Buffer<float> log_sums_;             // (batch, heads, frames)
};

}  // namespace

std::unique_ptr<Op> make_attention(Context& context, const Binding& binding, const AttentionDesc& desc) {
  return with_type(binding.type, [&]<class T>() -> std::unique_ptr<Op> {
    return std::make_unique<AttentionOp<T>>(context, binding, desc);
  });
}

}  // namespace lpsgd::cpu
