// Every operation of nn/ops.h in many shapes, run alone on a backend: what two backends are compared by.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nn/ops.h"

namespace lpsgd {

/// An operation with what it is bound to. Values are drawn, the same for every backend and type, and exact in
/// bfloat16.
struct OperationCase {
  std::string name;
  std::int64_t batch = 2;
  std::vector<Shape> inputs;
  Shape output;
  std::vector<Shape> parameters;  // in memory order
  std::int64_t buffers = 0;       // values of each of two buffers: running mean and variance
  bool residual = false, relu = false, masked = false;
  int gradients = 1;  // of the output, to be summed
  bool input_gradients = true;
  // The output and its gradient are columns of a wider array, with so many columns before and behind them.
  std::int64_t before = 0, behind = 0;
  bool in_place = false;       // the output lies where the input does
  bool over_gradient = false;  // the input's gradient lies where one of the output does
  bool training = true;
  std::int64_t tokens = 0;    // inputs are numbers below this
  float step = 0;             // inputs are multiples of this, so that many are equal
  float range = 1;            // inputs lie between minus this and this
  bool infinite = false;      // the output's gradients begin and end with an infinity
  bool not_a_number = false;  // the first input begins with a NaN
  std::vector<std::int32_t> lengths;
  std::vector<Shape> carried;  // of one sample
  std::vector<std::int32_t> continues;
  std::optional<ConvDesc> convolution;  // what it is, if it is one
  std::function<std::unique_ptr<Op>(Backend&, const Binding&)> make;
};

/// "output", "input 0", "parameter 1" (their gradients), "masked", "buffer 0"; and what was given: "given
/// input 0", "given parameter 1", "given gradient 0".
using Results = std::map<std::string, std::vector<float>>;

/// Forward and, in training, backward, the second time round (so that nothing hangs on memory being zero).
Results run_case(Backend& backend, DataType type, const OperationCase& c);

std::vector<OperationCase> operation_cases();
/// Runs attention, layer and group normalisation of an input that begins with a NaN. Returns what hides it,
/// or has one without reason; "" if nothing does.
std::string hidden_not_a_number(Backend& backend, DataType type);
/// Of one input with queries, keys and values.
OperationCase attention_case(std::int64_t batch, std::int64_t frames, const AttentionDesc& desc,
                             std::int64_t width);
OperationCase layer_norm_case(std::int64_t batch, const Shape& shape, double eps, bool bias = true);
OperationCase group_norm_case(std::int64_t batch, const Shape& shape, std::int64_t groups, bool relu = false);
OperationCase convolution_case(std::int64_t batch, const Shape& in, const ConvDesc& desc, bool relu);

/// A convolution and its gradients by the definition, in double: of what run_case() says was given.
Results convolution_by_definition(const OperationCase& c, const Results& given);

/// A loss alone: "loss", "top1", "top5", "scored" of three batches together, and the last one's
/// "gradient".
Results run_loss(Backend& backend, DataType type, const LossDesc& desc, bool lengths, double divisor = 0);

/// into = the sum of `terms` arrays, masked or not, `into` one of them: "sum".
Results run_sum(Backend& backend, DataType type, int terms, bool masked, std::int64_t n);

/// The norm of the difference over that of `truth`; of the tensor where it is largest.
struct Distance {
  double value = 0;
  std::string tensor;
};
Distance worst_distance(const Results& values, const Results& truth);

}  // namespace lpsgd
