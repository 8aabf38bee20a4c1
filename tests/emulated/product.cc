// A warp's product of two matrices. It reads and writes registers only, so a sanitizer has nothing to find
// here.
#include <bit>
#include <cstdint>

#include "tests/emulated/device.h"

namespace lpsgd::emulated {
namespace {

using Four = float __attribute__((vector_size(16)));

/// A warp's operands: the rows of a and the columns of b, of 16 values each.
struct Operands {
  Four a[16][4], b[8][4];
};

void store(Four (&row)[4], int k, std::uint32_t word) {
  row[k / 4][k % 4] = std::bit_cast<float>(word << 16);
  row[k / 4][k % 4 + 1] = std::bit_cast<float>(word & 0xffff0000u);
}

float product(const Four (&x)[4], const Four (&y)[4]) {
  const Four sums = ((x[0] * y[0] + x[1] * y[1]) + x[2] * y[2]) + x[3] * y[3];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

}  // namespace

void multiply_add(float (&sum)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  // Of even and odd products: a lane may be at the next one before another has read this one's.
  thread_local Operands operands[2][32];
  Operands& warp = operands[current->products++ % 2][thread_number() / 32];
  const int group = lane() / 4, pair = 2 * (lane() % 4);
  for (int i = 0; i < 4; ++i) store(warp.a[group + 8 * (i % 2)], pair + 8 * (i / 2), a[i]);
  store(warp.b[group], pair, b0);
  store(warp.b[group], pair + 8, b1);
  wait_for_lanes(Barrier::product);
  for (int row = 0; row < 2; ++row)
    for (int column = 0; column < 2; ++column)
      sum[2 * row + column] += product(warp.a[group + 8 * row], warp.b[pair + column]);
}

}  // namespace lpsgd::emulated
