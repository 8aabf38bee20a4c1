// Instructions of a warp for matrices, and copies into shared memory that go on beside the thread.
#include <cstring>

#include "tests/emulated/device.h"
#include "tests/emulated/machine.h"

namespace lpsgd::emulated {
namespace {

float value(std::uint32_t word, int half) {
  return std::bit_cast<float>(half == 0 ? word << 16 : word & 0xffff0000u);
}

/// A warp's operands: the rows of a and the columns of b.
struct Operands {
  float a[16][16], b[8][16];
};

float product(const float (&x)[16], const float (&y)[16]) {
  float sums[4] = {};  // side by side, for the compiler to use vectors
  for (int k = 0; k < 16; k += 4)
    for (int i = 0; i < 4; ++i) sums[i] += x[k + i] * y[k + i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

unsigned thread_number() {
  const Thread& t = *current;
  return t.thread.x + t.threads.x * t.thread.y;
}

}  // namespace

void load_matrices(const void* row, bool transposed, std::uint32_t (&out)[4]) {
  const std::uint64_t* rows = wait_for_warp(Barrier::matrices, pack(row));
  const int group = lane() / 4, pair = 2 * (lane() % 4);
  for (int matrix = 0; matrix < 4; ++matrix) {
    std::uint16_t halves[2];
    for (int half = 0; half < 2; ++half) {
      const int r = transposed ? pair + half : group, column = transposed ? group : pair + half;
      const std::uint64_t from = rows[8 * matrix + r];
      if (from % 16 != 0) undefined("a row of a matrix that is not aligned to 16 bytes");
      std::memcpy(&halves[half], unpack<const std::uint16_t*>(from) + column, sizeof halves[half]);
    }
    out[matrix] = halves[0] | std::uint32_t{halves[1]} << 16;
  }
  wait_for_lanes(Barrier::matrices);  // all lanes have read before one goes on
}

void multiply_add(float (&sum)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  // Of even and odd products: a lane may be at the next one before another has read this one's.
  thread_local Operands operands[2][32];
  Operands& warp = operands[current->products++ % 2][thread_number() / 32];
  const int group = lane() / 4, pair = 2 * (lane() % 4);
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 4; ++i) warp.a[group + 8 * (i % 2)][pair + 8 * (i / 2) + half] = value(a[i], half);
    warp.b[group][pair + half] = value(b0, half);
    warp.b[group][pair + 8 + half] = value(b1, half);
  }
  wait_for_lanes(Barrier::product);
  for (int row = 0; row < 2; ++row)
    for (int column = 0; column < 2; ++column)
      sum[2 * row + column] += product(warp.a[group + 8 * row], warp.b[pair + column]);
}

void copy_async(void* to, const void* from, bool zeros) {
  if (pack(to) % 16 != 0 || pack(from) % 16 != 0) undefined("16 bytes that are not aligned");
  current->copies.push_back({to, zeros ? nullptr : from, current->groups});
}
void commit_copies() {
  ++current->groups;
}
void wait_for_copies(int groups_left) {
  std::vector<AsyncCopy> later;
  for (const AsyncCopy& c : current->copies) {
    if (c.group >= current->groups - groups_left)
      later.push_back(c);
    else if (c.from == nullptr)
      std::memset(c.to, 0, 16);
    else
      std::memcpy(c.to, c.from, 16);
  }
  current->copies = std::move(later);
}

}  // namespace lpsgd::emulated
