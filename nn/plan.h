// The plan of a network's passes: which layers run as one operation, where each tensor lies in memory, and in
// which order backward announces the gradients. It depends on the graph alone, not on a device.
//
// What only a concatenation reads lies in the concatenation's memory, as columns of it, if the layer that
// writes it can do that; so does its gradient. Then nothing is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/data_type.h"
#include "nn/compute.h"
#include "nn/graph.h"

namespace lpsgd {

/// One operation: a layer and what is fused into it. A value (an output of forward) is named by the node that
/// writes it. A gradient is an index into Plan::gradients.
struct PlanStep {
  std::size_t node = 0;    // the layer that computes
  std::size_t output = 0;  // the node whose value is written: the last one fused
  std::vector<std::size_t> inputs;
  std::optional<std::size_t> residual;  // a value that is added to the layer's output
  bool relu = false;                    // applied last
  bool masks_by_output = false;  // backward takes the ReLU's mask from the output, which is kept for it
  /// One step alone reads the output, as its only input, and this step's input stays as it is from forward
  /// until its own backward, which does not read the output. So the reader may compute the output itself.
  bool has_one_reader = false;

  bool has_backward = false;  // if not, the members below are empty
  bool backward_reads_inputs = false, backward_reads_output = false;
  /// The terms whose sum is the output's gradient.
  std::vector<std::size_t> output_gradients;
  /// The terms are first summed here by an operation of their own, which also applies the ReLU's mask if it
  /// comes from the output.
  std::optional<std::size_t> sum_into;
  /// The gradient of layer output plus residual, which the step's backward writes.
  std::optional<std::size_t> masked;
  /// Backward may hand the input's gradient row by row to the previous step, which wrote the only input. The
  /// memory of both steps stays in use until both are done.
  bool rowwise_backward = false;
  std::vector<std::optional<std::size_t>> input_gradients;  // one per input; empty if not needed
  /// Steps whose output is written again before this backward, which is the first to read it.
  std::vector<std::size_t> recomputed;
};

struct Plan {
  /// A part of the arena, for one sample. The arena holds `batch` times as much.
  struct MemoryRange {
    std::int64_t offset = 0;  // in bytes
    std::int64_t elements = 0;
    DataType type = DataType::f32;
    // Columns of another range, which begins at the same offset: rows of `width` values (the last dimension)
    // are `stride` values apart, and `column` values lie before each. Stride 0: a range of its own.
    std::int64_t width = 0, stride = 0, column = 0;
    std::int64_t bytes() const { return elements * size_of(type); }
    /// Its address in an arena of `batch` samples.
    std::byte* in(std::byte* arena, std::int64_t batch) const {
      return arena + offset * batch + column * size_of(type);
    }
  };
  std::vector<PlanStep> steps;              // in forward's order; backward runs them in reverse
  std::vector<std::size_t> value_of;        // per node: the value that it is a view of, or its own
  std::vector<MemoryRange> values;          // per node that has a value of its own
  std::vector<MemoryRange> gradients;       // number 0 is the gradient of the logits
  std::int64_t arena = 0;                   // bytes for one sample, values and gradients together
  std::vector<std::size_t> announce_order;  // of the tensors
};

/// `type` is the type of all values and gradients, except of token numbers. Memory that backward no longer
/// needs is used again `delay` of the plan's steps later. Throws ConfigError if `type` is bf16 and a layer
/// other than an embedding reads or writes token numbers.
Plan make_plan(const Graph& graph, bool training, DataType type = DataType::f32,
               Recompute recompute = Recompute::none, std::size_t delay = 0);

/// For training on several branches (nn/branches.h), where a task that uses memory again has to wait for
/// those that used it before: with the longest delay, of some, that takes at most a 64th more memory.
Plan make_branching_plan(const Graph& graph, DataType type, Recompute recompute);

}  // namespace lpsgd
