// Gradient accumulation: the gradients of a step are the mean of those of its micro-batches, which are
// computed one after the other. All but the last are added up in an arena of their own, in order and in
// float32.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/tensor_info.h"
#include "nn/ops.h"

namespace lpsgd {

class GradientAccumulation {
 public:
  /// `gradients` is the arena of the gradients, in the backend's memory.
  GradientAccumulation(Backend& backend, std::span<float> gradients, std::int64_t micro_batches);

  /// Adds the gradients of a micro-batch that is not the last one. `first`: there is no sum yet.
  void add(bool first) { (first ? first_ : add_)->backward(); }

  /// Part of the arena: gradients = (sum + gradients) / micro-batches, behind the backward of the last one.
  class Mean {
   public:
    bool is_empty() const { return ranges_.empty(); }
    void run() const {
      for (const std::unique_ptr<Op>& op : ranges_) op->backward();
    }

   private:
    friend class GradientAccumulation;
    std::vector<std::unique_ptr<Op>> ranges_;
  };
  /// Of these tensors, in as few passes as their places allow.
  Mean mean_of(std::vector<TensorInfo> tensors) const;

 private:
  /// into = factor * the sum of the terms, each of which begins at value `first`.
  std::unique_ptr<Op> scaled_sum(std::span<float> into, const std::vector<std::span<const float>>& terms,
                                 double factor) const;

  Backend& backend_;
  const std::span<float> gradients_, sum_;
  const double factor_;  // 1 / micro-batches
  const std::unique_ptr<Op> first_, add_;
};

}  // namespace lpsgd
