// The matrix instructions against a plain product. Numbers are small integers, so that any order of float32
// sums is exact.
#include <gtest/gtest.h>

#include <vector>

#include "core/cuda/check.h"
#include "core/device.h"
#include "nn/compute.h"
#include "tests/core/gpu_test.h"
#include "tests/nn/matrix_product.h"

namespace lpsgd {
namespace {

class Matrices : public GpuTest {};

constexpr std::size_t side = 16;

TEST_F(Matrices, AreMultiplied) {
  if (const auto why = unsupported(Compute::bf16, device)) GTEST_SKIP() << *why;
  const ScopedDevice scope(device);
  Stream stream(device);
  DeviceBuffer<Bf16> a_there(device, side * side), b_there(device, side * side);
  DeviceBuffer<float> c_there(device, side * side);
  for (const bool a_transposed : {false, true})
    for (const bool b_transposed : {false, true})
      for (const bool zeros : {false, true}) {
        SCOPED_TRACE(testing::Message() << a_transposed << b_transposed << zeros);
        std::vector<Bf16> a, b;
        std::vector<float> c, expected;
        for (std::size_t i = 0; i < side * side; ++i) {
          a.push_back(narrow<Bf16>(static_cast<float>(i * 37 % 251) - 125));
          b.push_back(narrow<Bf16>(static_cast<float>(i * 71 % 241) - 120));
          c.push_back(static_cast<float>(i));
        }
        expected = c;
        for (std::size_t i = 0; i < side; ++i)
          for (std::size_t j = 0; j < side; ++j)
            for (std::size_t k = 0; k < side; ++k) {
              const std::size_t row = a_transposed ? k : i, column = a_transposed ? i : k;
              if (zeros && column >= 8) continue;
              expected[i * side + j] +=
                  widen(a[row * side + column]) * widen(b_transposed ? b[j * side + k] : b[k * side + j]);
            }
        copy_values<Bf16>(a_there.view(), a, stream);
        copy_values<Bf16>(b_there.view(), b, stream);
        copy_values<float>(c_there.view(), c, stream);
        check(launch_matrix_product(
            {a_there.data(), b_there.data(), c_there.data(), a_transposed, b_transposed, zeros},
            stream.view().handle()));
        copy_values<float>(c, c_there.view(), stream);
        stream.synchronize();
        EXPECT_EQ(c, expected);
      }
}

}  // namespace
}  // namespace lpsgd
