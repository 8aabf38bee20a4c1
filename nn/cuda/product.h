// Matrix products by cuBLASLt. Dense and recurrent layers and attention use them. A product is planned once
// and then runs on any memory. Matrices are row-major.
#pragma once

#include <cstdint>

#include "nn/cuda/context.h"
#include "nn/cuda/cublas_lt.h"

namespace lpsgd::cuda {

/// c (m, n) = a (m, k) b (k, n). With `a_transposed`, a is stored as (k, m); with `b_transposed`, b as (n,
/// k). A batch is so many products, of matrices that lie one after the other.
struct ProductDesc {
  std::int64_t m = 0, n = 0, k = 0;
  bool a_transposed = false, b_transposed = false;
  DataType out = DataType::f32;  // of c and of the bias; a and b have the context's type
  const void* bias = nullptr;    // n values, added to each row of c
  bool relu = false;
  bool accumulate = false;          // c += a b
  std::int64_t alignment = 16;      // bytes: that of every a and b that run() will get, and of all in a batch
  std::int64_t out_alignment = 16;  // of every c
  std::int64_t batch = 1;           // more than 1: without a bias
};

class Product {
 public:
  /// Algorithms are measured on a, b and c, and c is overwritten. DeviceError if cuBLASLt has no algorithm.
  Product(Context& context, const ProductDesc& desc, const void* a, const void* b, void* c);
  ~Product();
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;
  void run(const void* a, const void* b, void* c) const;
  std::int64_t workspace() const { return workspace_; }  // bytes

 private:
  void run_with(const cublasLtMatmulAlgo_t& algorithm, const void* a, const void* b, void* c) const;
  void choose(const ProductDesc& desc, const void* a, const void* b, void* c);

  Context& context_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, c_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
  std::int64_t workspace_ = 0;
  float beta_ = 0;
};

}  // namespace lpsgd::cuda
