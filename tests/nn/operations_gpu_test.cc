// Every operation on the GPU against the CPU backend, from equal inputs, forward and backward.
//
// Bounds are of the norm of a tensor's difference over its norm. fp32: sums in another order. tf32: operands
// of products rounded to ten bits of fraction, 2^-11 of each. bf16: inputs are exact, what is stored is
// rounded to seven bits of fraction, 2^-9 of each value, several times over in an LSTM.
#include <gtest/gtest.h>

#include <cmath>

#include "nn/cuda/backend.h"
#include "tests/core/gpu_test.h"
#include "tests/nn/operation_cases.h"

namespace lpsgd {
namespace {

constexpr double fp32_bound = 1e-5, tf32_bound = 2e-3, bf16_bound = 2e-2;

/// Whether cuDNN or cuBLASLt compute a part of it.
bool calls_libraries(const OperationCase& c) {
  for (const char* kind : {"conv", "dense", "lstm", "attention"})
    if (c.name.find(kind) != std::string::npos) return true;
  return false;
}

class OperationsGpu : public GpuTest {
 protected:
  std::unique_ptr<Backend> gpu(Compute compute, bool deterministic = false) {
    const ScopedDevice scope(device);
    return make_cuda_backend(device, compute, deterministic);
  }
  void compare(Compute compute, double bound, bool own_kernels = false) {
    if (const auto why = unsupported(compute, device)) GTEST_SKIP() << *why;
    const DataType type = compute == Compute::bf16 ? DataType::bf16 : DataType::f32;
    for (const OperationCase& c : operation_cases()) {
      if (own_kernels && calls_libraries(c)) continue;
      SCOPED_TRACE(c.name);
      const auto cpu = make_cpu_backend(1, Compute::fp32);
      const auto cuda = gpu(compute);
      const Distance d = worst_distance(run_case(*cuda, type, c), run_case(*cpu, DataType::f32, c));
      EXPECT_LE(d.value, bound) << d.tensor;
    }
  }
};

TEST_F(OperationsGpu, Fp32) {
  compare(Compute::fp32, fp32_bound);
}
TEST_F(OperationsGpu, Tf32) {
  compare(Compute::tf32, tf32_bound);
}
TEST_F(OperationsGpu, Bf16) {
  compare(Compute::bf16, bf16_bound);
}

// For tools that cannot look into the libraries' kernels.
TEST_F(OperationsGpu, OwnKernelsInFp32) {
  compare(Compute::fp32, fp32_bound, true);
}
TEST_F(OperationsGpu, OwnKernelsInBf16) {
  compare(Compute::bf16, bf16_bound, true);
}

TEST_F(OperationsGpu, DeterministicOnesGiveTheSameBits) {
  for (const OperationCase& c : operation_cases()) {
    SCOPED_TRACE(c.name);
    const auto once = gpu(Compute::fp32, true), again = gpu(Compute::fp32, true);
    EXPECT_EQ(run_case(*once, DataType::f32, c), run_case(*again, DataType::f32, c));
  }
}

// Draws and comparisons are the CPU's to the bit.
TEST_F(OperationsGpu, DropoutMasksAndMaximaAreTheCpus) {
  for (const OperationCase& c : operation_cases()) {
    if (c.name.find("dropout") == std::string::npos && c.name.find("max pool") == std::string::npos) continue;
    SCOPED_TRACE(c.name);
    const auto cpu = make_cpu_backend(1, Compute::fp32);
    const auto cuda = gpu(Compute::fp32);
    EXPECT_EQ(run_case(*cuda, DataType::f32, c).at("output"), run_case(*cpu, DataType::f32, c).at("output"));
  }
}

// It reaches the pixels of its window, which have it as it is, and no others.
TEST_F(OperationsGpu, AnInfiniteGradientOfPooling) {
  for (OperationCase c : operation_cases()) {
    if (c.name.find(" pool ") == std::string::npos) continue;
    SCOPED_TRACE(c.name);
    c.infinite = true;
    const auto cpu = make_cpu_backend(1, Compute::fp32);
    const auto cuda = gpu(Compute::fp32);
    const std::vector<float> got = run_case(*cuda, DataType::f32, c).at("input 0"),
                             expected = run_case(*cpu, DataType::f32, c).at("input 0");
    std::size_t infinite = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(std::isinf(got[i]), std::isinf(expected[i])) << i;
      EXPECT_FALSE(std::isnan(got[i])) << i;
      infinite += std::isinf(got[i]);
    }
    EXPECT_GE(infinite, 2u);
  }
}

TEST_F(OperationsGpu, NotANumberIsNotHidden) {
  EXPECT_EQ(hidden_not_a_number(*gpu(Compute::fp32), DataType::f32), "");
  if (const auto why = unsupported(Compute::bf16, device)) GTEST_SKIP() << *why;
  EXPECT_EQ(hidden_not_a_number(*gpu(Compute::bf16), DataType::bf16), "");
}

/// Rows that teams of 8 threads, of 32 and of a block take, more than a grid has of these; and of attention.
TEST_F(OperationsGpu, MoreRowsThanAGridHasTeams) {
  for (const OperationCase& c :
       {layer_norm_case(140000, {8}, 1e-5), layer_norm_case(33000, {136}, 1e-5),
        layer_norm_case(4100, {515}, 1e-5), group_norm_case(4100, {1, 2, 64}, 8, true),
        attention_case(140, 120, {.heads = 2}, 8)}) {
    SCOPED_TRACE(c.name);
    const auto cpu = make_cpu_backend(1, Compute::fp32);
    const auto cuda = gpu(Compute::fp32);
    const Distance d = worst_distance(run_case(*cuda, DataType::f32, c), run_case(*cpu, DataType::f32, c));
    EXPECT_LE(d.value, fp32_bound) << d.tensor;
  }
}

TEST_F(OperationsGpu, Loss) {
  const std::pair<LossDesc, bool> cases[] = {
      {{5, 1, 7}, false},     {{128, 1, 10}, false}, {{6, 9, 33}, true},       {{3, 2, 1000, 0.1}, true},
      {{2, 1, 20000}, false}, {{300, 1, 1}, false},  {{64, 1, 10, 0.5}, false}};
  for (const auto& [desc, lengths] : cases) {
    for (const DataType type : {DataType::f32, DataType::bf16}) {
      SCOPED_TRACE(desc.classes);
      const Compute compute = type == DataType::bf16 ? Compute::bf16 : Compute::fp32;
      if (unsupported(compute, device)) continue;
      const auto cpu = make_cpu_backend(1, Compute::fp32);
      const auto cuda = gpu(compute);
      const double divisor = lengths ? 7.5 : 0;
      const Results got = run_loss(*cuda, type, desc, lengths, divisor);
      const Results expected = run_loss(*cpu, DataType::f32, desc, lengths, divisor);
      for (const char* count : {"top1", "top5", "scored"}) EXPECT_EQ(got.at(count), expected.at(count));
      EXPECT_NEAR(got.at("loss")[0], expected.at("loss")[0],
                  1e-6f * std::abs(expected.at("loss")[0]) + 1e-6f);
      if (desc.classes == 1) continue;  // the loss is 0
      EXPECT_LE(worst_distance(got, expected).value, type == DataType::f32 ? fp32_bound : bf16_bound);
    }
  }
}

TEST_F(OperationsGpu, Sums) {
  for (const int terms : {1, 2, 5, 64, 70, 130}) {
    for (const bool masked : {false, true}) {
      const auto cpu = make_cpu_backend(1, Compute::fp32);
      const auto cuda = gpu(Compute::fp32);
      for (const std::int64_t n : {1, 7, 1000, 4099}) {
        SCOPED_TRACE(n);
        EXPECT_LE(worst_distance(run_sum(*cuda, DataType::f32, terms, masked, n),
                                 run_sum(*cpu, DataType::f32, terms, masked, n))
                      .value,
                  fp32_bound);
      }
    }
  }
}

}  // namespace
}  // namespace lpsgd
