// y = x W^T + b on rows of x, with its two backward products, planned once for a number of rows and run on
// any memory: what dense and recurrent layers are made of.
#pragma once

#include "nn/cpu/context.h"

namespace lpsgd::cpu {

struct ProductDesc {
  std::int64_t rows = 0, in = 0, out = 0;
  DataType type = DataType::f32;  // of x, its gradient, and y's gradient
  DataType sums = DataType::f32;  // of y
  bool bias = false, relu = false;
  bool accumulate = false;  // y += x W^T
  bool forward = true;      // forward() will be called
  bool data = false;        // input_gradient() will be called
  bool gradient = false;    // weight_gradient() will be called
  bool passing = false;     // a copy of W lasts only until another layer prepares its own
};

/// W is (out, in) as in the arena, or in bfloat16 a copy in the layout that oneDNN prefers; prepare_*() bring
/// that copy up to date with the weights. A copy that is `passing` takes no memory of its own, and each use
/// needs its prepare_*() right before it.
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

}  // namespace lpsgd::cpu
