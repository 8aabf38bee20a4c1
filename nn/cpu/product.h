// y = x W^T + b on the rows of x, and the two matrix products of its backward. Dense and recurrent layers use
// it. It is planned once for a number of rows and then runs on any memory.
#pragma once

#include "nn/cpu/context.h"

namespace lpsgd::cpu {

struct ProductDesc {
  std::int64_t rows = 0, in = 0, out = 0;
  DataType type = DataType::f32;  // of x, of its gradient, and of y's gradient
  DataType sums = DataType::f32;  // of y
  bool bias = false, relu = false;
  bool accumulate = false;   // y += x W^T
  bool forward = true;       // forward() will be called
  bool data = false;         // input_gradient() will be called
  bool gradient = false;     // weight_gradient() will be called
  bool shared_copy = false;  // copies of W lie in memory that other layers use, too
  bool repeated = false;     // forward() runs often between two prepare_forward(), which may copy W for it
};

/// W is (out, in), as in the arena. For bfloat16, and if it is read repeatedly, it is a copy in the layout
/// that oneDNN prefers, and prepare_*() copies the weights. With `shared_copy`, call prepare_*() right before
/// each use.
class Product {
 public:
  Product(Context& context, const ProductDesc& desc, const float* weights, const float* bias);
  void prepare_forward() { forward_weights_.reorder.run(context_.stream); }
  /// x (rows, in), y (rows, out).
  void forward(const void* x, void* y);
  void prepare_input_gradient() { data_weights_.reorder.run(context_.stream); }
  /// dx (rows, in) = dy (rows, out) W.
  void input_gradient(const void* dy, void* dx);
  /// dw (out, in) = dy^T x, and db (out) = the sum of dy's rows where the product has a bias.
  void weight_gradient(const void* x, const void* dy, float* dw, float* db);

 private:
  Context& context_;
  Reordered forward_weights_, data_weights_;
  Call forward_, data_, gradient_;
};

/// The gradient of weights, part by part: dw (out, in) += dy^T x for rows of x (rows, in) and dy (rows, out).
class WeightGradient {
 public:
  WeightGradient(Context& context, std::int64_t rows, std::int64_t in, std::int64_t out, DataType type);
  void add(const void* x, const void* dy, float* dw);

 private:
  Context& context_;
  Call call_;
};

}  // namespace lpsgd::cpu
