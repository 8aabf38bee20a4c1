// Gradient accumulation: the gradients of a step are the mean of those of its micro-batches, which are
// computed one after the other. All but the last are added up in an arena of their own, in order and in
// float32.
#pragma once

#include <cstddef>
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
  void add(bool first);

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
  /// Of the tensors with these numbers, in as few passes as their places allow.
  Mean mean_of(const std::vector<TensorInfo>& tensors, std::vector<std::size_t> numbers) const;

 private:
  Backend& backend_;
  const std::span<float> gradients_, sum_;
  const double factor_;            // 1 / micro-batches
  const std::unique_ptr<Op> add_;  // backward: sum += gradients
};

}  // namespace lpsgd
