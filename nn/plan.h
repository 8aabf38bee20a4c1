// The plan of a network's passes: which layers run as one operation, which memory each tensor lies in, and in
// which order backward goes. Made once, from the graph alone; knows no device.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/data_type.h"
#include "nn/graph.h"

namespace lpsgd {

/// Places in one arena, given out by first fit and taken back, for tensors whose lifetimes are known.
class OffsetAllocator {
 public:
  std::int64_t take(std::int64_t bytes);  // offset in bytes, a multiple of 64
  void give_back(std::int64_t offset, std::int64_t bytes);
  std::int64_t high_water() const { return high_water_; }

 private:
  struct Hole {
    std::int64_t offset, bytes;
  };
  std::vector<Hole> holes_;  // by offset, no two touching
  std::int64_t end_ = 0, high_water_ = 0;
};

/// An operation: a layer with what is fused into its pass. Values are named by the node that writes them;
/// gradients are numbers of buffers in Plan::gradients.
struct PlanStep {
  std::size_t node = 0;    // the layer that computes
  std::size_t output = 0;  // the node whose value it writes: the last one fused
  std::vector<std::size_t> inputs;
  std::optional<std::size_t> residual;
  bool relu = false;

  // Backward, if it has any.
  bool backward = false;
  std::vector<std::size_t> output_gradients;
  /// The output's gradients are summed (and masked by the fused ReLU) here first, by an operation apart.
  std::optional<std::size_t> sum_into;
  std::optional<std::size_t> masked;
  /// The step before this one wrote the only input, which no other reads, and this one's backward can hand it
  /// its output's gradient in parts: the memory of both lasts until both are done.
  bool joins_source = false;
  std::vector<std::optional<std::size_t>> input_gradients;
};

struct Plan {
  /// Per sample; the arena holds `batch` times as much.
  struct MemoryRange {
    std::int64_t offset = 0;  // in bytes
    std::int64_t elements = 0;
    DataType type = DataType::f32;
    std::int64_t bytes() const { return elements * size_of(type); }
  };
  std::vector<PlanStep> steps;              // in forward's order; backward runs them the other way
  std::vector<std::size_t> value_of;        // per node: the node whose memory holds its output (views)
  std::vector<MemoryRange> values;          // per node that is its own value
  std::vector<MemoryRange> gradients;       // buffers of backward; number 0 is the logits' gradient
  std::int64_t arena = 0;                   // bytes per sample: values and gradients share it
  std::vector<std::size_t> announce_order;  // tensors
};

/// `type`: of all values and gradients but token numbers. ConfigError where those cannot be told apart.
Plan make_plan(const Graph& graph, bool training, DataType type = DataType::f32);

}  // namespace lpsgd
