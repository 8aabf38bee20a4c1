// Products of matrices, alone and in batches, against their definition. Numbers are small integers, so that
// any order of float32 sums is exact, and so is bfloat16.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/error.h"
#include "nn/cuda/product.h"
#include "tests/core/gpu_test.h"

namespace lpsgd {
namespace {

class ProductGpu : public GpuTest {
 protected:
  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

  static std::vector<float> numbers(std::int64_t n, std::int64_t factor) {
    std::vector<float> out(size(n));
    for (std::int64_t i = 0; i < n; ++i) out[size(i)] = static_cast<float>(i * factor % 7 - 3);
    return out;
  }

  /// Values in a context's memory.
  class There {
   public:
    There(cuda::Context& context, DataType type, const std::vector<float>& values)
        : context_(context), type_(type), size_(values.size()) {
      data_ = context.allocate(static_cast<std::int64_t>(size_) * size_of(type));
      if (type == DataType::f32) {
        copy_bytes(data_, values.data(), size_ * sizeof(float), context.stream);
      } else {
        std::vector<Bf16> low(size_);
        for (std::size_t i = 0; i < size_; ++i) low[i] = narrow<Bf16>(values[i]);
        copy_bytes(data_, low.data(), size_ * sizeof(Bf16), context.stream);
      }
    }
    void* data() const { return data_; }
    std::vector<float> get() const {
      std::vector<float> out(size_);
      std::vector<Bf16> low(type_ == DataType::f32 ? 0 : size_);
      if (type_ == DataType::f32)
        copy_bytes(out.data(), data_, size_ * sizeof(float), context_.stream);
      else
        copy_bytes(low.data(), data_, size_ * sizeof(Bf16), context_.stream);
      context_.stream.synchronize();
      for (std::size_t i = 0; i < low.size(); ++i) out[i] = widen(low[i]);
      return out;
    }

   private:
    cuda::Context& context_;
    DataType type_;
    std::size_t size_;
    void* data_;
  };

  /// The alignment of matrices of so many values that lie one after the other.
  static std::int64_t alignment_of(std::int64_t values, DataType type) {
    std::int64_t out = 16;
    while (values * size_of(type) % out != 0) out /= 2;
    return out;
  }
};

TEST_F(ProductGpu, BatchesOfEveryShapeAreTheirDefinition) {
  struct Size {
    std::int64_t m, n, k, batch;
  };
  for (const Compute compute : {Compute::fp32, Compute::tf32, Compute::bf16}) {
    if (unsupported(compute, device)) continue;
    const ScopedDevice scope(device);
    for (const auto& [m, n, k, batch] :
         {Size{8, 16, 8, 1}, {8, 16, 8, 3}, {5, 7, 3, 4}, {6, 2, 10, 5}, {1, 1, 1, 7}, {24, 40, 24, 2}})
      for (const bool a_transposed : {false, true})
        for (const bool b_transposed : {false, true})
          for (const bool low_output : {false, true})
            for (const bool accumulate : {false, true}) {
              if (low_output && compute != Compute::bf16) continue;
              SCOPED_TRACE(fmt::format("{} x {} x {}, batch of {}{}{}{}{}", m, n, k, batch,
                                       a_transposed ? ", a transposed" : "",
                                       b_transposed ? ", b transposed" : "",
                                       low_output ? ", to bfloat16" : "", accumulate ? ", added" : ""));
              cuda::Context context(device, compute, false, 1);
              const DataType out = low_output ? context.type : DataType::f32;
              cuda::ProductDesc d{.m = m,
                                  .n = n,
                                  .k = k,
                                  .a_transposed = a_transposed,
                                  .b_transposed = b_transposed,
                                  .out = out,
                                  .accumulate = accumulate,
                                  .batch = batch};
              if (batch > 1) {
                d.alignment = std::min(alignment_of(m * k, context.type), alignment_of(k * n, context.type));
                d.out_alignment = alignment_of(m * n, out);
              }
              const std::vector<float> a = numbers(batch * m * k, 5), b = numbers(batch * k * n, 3);
              std::vector<float> c = numbers(batch * m * n, 2);
              const There a_there(context, context.type, a), b_there(context, context.type, b);
              const There trial(context, out, c), c_there(context, out, c);
              const cuda::Product product(context, d, a_there.data(), b_there.data(), trial.data());
              product.run(a_there.data(), b_there.data(), c_there.data());
              for (std::int64_t i = 0; i < batch * m * n; ++i) {
                const std::int64_t matrix = i / (m * n), row = i / n % m, column = i % n;
                float sum = accumulate ? c[size(i)] : 0.0f;
                for (std::int64_t j = 0; j < k; ++j)
                  sum += a[size(matrix * m * k + (a_transposed ? j * m + row : row * k + j))] *
                         b[size(matrix * k * n + (b_transposed ? column * k + j : j * n + column))];
                c[size(i)] = sum;
              }
              EXPECT_EQ(c_there.get(), c);
              const bool named = context.choices.at(0).find("batch of") != std::string::npos;
              EXPECT_EQ(named, batch > 1) << context.choices.at(0);
            }
  }
}

TEST_F(ProductGpu, ABatchHasNoBias) {
  const ScopedDevice scope(device);
  cuda::Context context(device, Compute::fp32, false, 1);
  const There a(context, DataType::f32, numbers(128, 5));
  const cuda::ProductDesc d{.m = 8, .n = 8, .k = 8, .bias = a.data(), .batch = 2};
  EXPECT_THROW(cuda::Product(context, d, a.data(), a.data(), a.data()), Error);
}

}  // namespace
}  // namespace lpsgd
