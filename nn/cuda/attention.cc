// Attention by batches of matrix products, one product for each pair of sample and head. The scores of a
// group of pairs are in memory at once: few enough that they stay in a large GPU's cache. Backward computes
// them again, and the weights from them and the logarithms of the sums that forward kept.
#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "nn/cuda/product.h"

namespace lpsgd::cuda {
namespace {

class AttentionOp final : public Op {
 public:
  AttentionOp(Context& context, const Binding& b, const AttentionDesc& desc)
      : context_(context), b_(b), pairs_(b.batch * desc.heads) {
    const auto padded = [](std::int64_t n) { return (n + 7) / 8 * 8; };
    const std::int64_t frames = b.shape[0], width = b.shape[1] / desc.heads;
    const std::int64_t rows = padded(frames), columns = padded(width);
    if (pairs_ > limit || rows * std::max(rows, columns) > limit)
      throw DeviceError(fmt::format(
          "attention of {} heads over {} frames is too large for a GPU: a head's scores are at most 2^31",
          pairs_, frames));
    shape_ = {.batch = b.batch,
              .heads = static_cast<int>(desc.heads),
              .frames = static_cast<int>(frames),
              .width = static_cast<int>(width),
              .padded_frames = static_cast<int>(rows),
              .padded_width = static_cast<int>(columns),
              .causal = desc.causal};
    for (const InputView& in : b.inputs) has_backward_ = has_backward_ || in.gradient != nullptr;
    has_backward_ = has_backward_ && b.training;
    // All groups have one size, so that they need one plan. The last one may begin in the one before it.
    const std::int64_t value = static_cast<std::int64_t>(sizeof(float));
    const std::int64_t low_value = b.type == DataType::f32 ? 0 : size_of(b.type);
    const std::int64_t of_score = (has_backward_ ? 2 : 1) * (value + low_value);
    const std::int64_t largest = std::clamp<std::int64_t>(
        context.score_bytes / (of_score * rows * std::max(rows, columns)), 1, largest_batch);
    groups_ = (pairs_ + largest - 1) / largest;
    group_ = (pairs_ + groups_ - 1) / groups_;
    matrix_bytes_ = group_ * rows * columns * size_of(b.type);
    score_bytes_ = group_ * rows * rows * value;
    low_score_bytes_ = group_ * rows * rows * low_value;
    context.scratch(has_backward_ ? 4 * matrix_bytes_ + 2 * (score_bytes_ + low_score_bytes_)
                                  : 3 * matrix_bytes_ + score_bytes_ + low_score_bytes_);
    plan(rows, columns);
    if (has_backward_) log_sums_ = context.array<float>(pairs_ * frames);
    if (b.training && desc.dropout > 0) draws_.emplace(b.random, desc.dropout);
  }

  void forward(const Pass& pass) override {
    for (std::int64_t g = 0; g < groups_; ++g) {
      const HeadRange range = group(g);
      split(range, false);
      by_keys_->run(matrix(queries), matrix(keys), scores(0));
      check(launch_attention_weights(b_.type, shape_, range, pass.training ? dropout() : WeightDropout{},
                                     context_.lengths, scores(0), low_scores(0),
                                     pass.training ? log_sums_ : nullptr, context_.handle()));
      by_values_->run(low_scores(0), matrix(values), matrix(queries));  // which are not read any more
      const HeadCopies out{{{matrix(queries), b_.output, shape_.heads * std::int64_t{shape_.width}}}, 1};
      check(launch_join_heads(b_.type, shape_, range, out, context_.handle()));
    }
  }

  void backward() override {
    for (std::int64_t g = 0; has_backward_ && g < groups_; ++g) {
      const HeadRange range = group(g);
      split(range, true);
      by_keys_->run(matrix(queries), matrix(keys), scores(0));
      by_keys_->run(matrix(outputs), matrix(values), scores(1));
      check(launch_attention_gradient(b_.type, shape_, range, dropout(), context_.lengths, scores(0),
                                      scores(1), log_sums_, low_scores(0), low_scores(1), context_.handle()));
      // Each gradient takes the place of what was read for the last time.
      HeadCopies copies;
      if (void* to = gradient(values)) {
        by_queries_->run(low_scores(0), matrix(outputs), matrix(values));
        copies.at[copies.count++] = {matrix(values), to, input_stride()};
      }
      if (void* to = gradient(queries)) {
        by_values_->run(low_scores(1), matrix(keys), matrix(outputs));
        copies.at[copies.count++] = {matrix(outputs), to, input_stride()};
      }
      if (void* to = gradient(keys)) {
        by_queries_->run(low_scores(1), matrix(queries), matrix(keys));
        copies.at[copies.count++] = {matrix(keys), to, input_stride()};
      }
      check(launch_join_heads(b_.type, shape_, range, copies, context_.handle()));
    }
  }

 private:
  static constexpr std::int64_t limit = std::numeric_limits<std::int32_t>::max();
  static constexpr std::int64_t largest_batch = 65535;          // blocks of a grid's third dimension
  enum Part : std::uint8_t { queries, keys, values, outputs };  // outputs: their gradients

  void plan(std::int64_t rows, std::int64_t columns) {
    ProductDesc d{.m = rows, .n = rows, .k = columns, .b_transposed = true, .batch = group_};
    by_keys_.emplace(context_, d, matrix(queries), matrix(keys), scores(0));
    d = {.m = rows, .n = columns, .k = rows, .out = b_.type, .batch = group_};
    by_values_.emplace(context_, d, low_scores(0), matrix(values), matrix(queries));
    if (!has_backward_) return;
    d.a_transposed = true;
    by_queries_.emplace(context_, d, low_scores(0), matrix(queries), matrix(values));
  }

  WeightDropout dropout() const { return draws_ ? WeightDropout{*draws_, context_.pass} : WeightDropout{}; }
  HeadRange group(std::int64_t number) const {
    return {static_cast<unsigned>(std::min(number * group_, pairs_ - group_)), static_cast<unsigned>(group_)};
  }

  /// Queries, keys and values, and the output's gradient, to matrices.
  void split(HeadRange range, bool with_gradient) {
    HeadCopies copies;
    for (const Part part : {queries, keys, values})
      copies.at[copies.count++] = {input(part), matrix(part), input_stride()};
    if (with_gradient)
      copies.at[copies.count++] = {b_.output_gradients[0], matrix(outputs),
                                   shape_.heads * std::int64_t{shape_.width}};
    check(launch_split_heads(b_.type, shape_, range, copies, context_.lengths, context_.handle()));
  }

  bool is_joined() const { return b_.inputs.size() == 1; }
  std::int64_t input_stride() const { return b_.inputs[0].shape[1]; }
  /// Where a part begins in the only input, in bytes.
  std::int64_t column(Part part) const { return is_joined() ? part * b_.shape[1] * size_of(b_.type) : 0; }
  const void* input(Part part) const {
    return static_cast<const std::byte*>(b_.inputs[is_joined() ? 0 : part].value) + column(part);
  }
  void* gradient(Part part) const {
    void* const all = b_.inputs[is_joined() ? 0 : part].gradient;
    return all ? static_cast<std::byte*>(all) + column(part) : nullptr;
  }

  // Scratch memory: the matrices of the network's type; scores and, in backward, the weights' gradients; and
  // both once more in the network's type, unless that is float32.
  std::byte* scratch(std::int64_t at) const { return context_.scratch(0) + at; }
  std::int64_t scores_at() const { return (has_backward_ ? 4 : 3) * matrix_bytes_; }
  void* matrix(Part part) const { return scratch(part * matrix_bytes_); }
  float* scores(std::int64_t i) const {
    return reinterpret_cast<float*>(scratch(scores_at() + i * score_bytes_));
  }
  void* low_scores(std::int64_t i) const {
    if (b_.type == DataType::f32) return scores(i);
    return scratch(scores_at() + (has_backward_ ? 2 : 1) * score_bytes_ + i * low_score_bytes_);
  }

  Context& context_;
  Binding b_;
  std::int64_t pairs_;
  AttentionShape shape_;
  std::int64_t groups_ = 1, group_ = 1;                                    // their number; pairs of each
  std::int64_t matrix_bytes_ = 0, score_bytes_ = 0, low_score_bytes_ = 0;  // of a group
  bool has_backward_ = false;
  // a b^T, a b and a^T b, where a row of a or b belongs to a frame.
  std::optional<Product> by_keys_, by_values_, by_queries_;
  std::optional<DropoutDraws> draws_;
  float* log_sums_ = nullptr;  // (batch, heads, frames)
};

}  // namespace

std::unique_ptr<Op> make_attention(Context& context, const Binding& binding, const AttentionDesc& desc) {
  return std::make_unique<AttentionOp>(context, binding, desc);
}

}  // namespace lpsgd::cuda
