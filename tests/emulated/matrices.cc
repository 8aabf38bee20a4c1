// Instructions of a warp for matrices, and copies into shared memory that go on beside the thread.
#include <cstring>

#include "tests/emulated/device.h"
#include "tests/emulated/machine.h"

namespace lpsgd::emulated {
namespace {

float value(std::uint32_t word, int half) {
  return std::bit_cast<float>(half == 0 ? word << 16 : word & 0xffff0000u);
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
  wait_for_warp(Barrier::matrices, 0);  // all lanes have read before one goes on
}

void multiply_add(float (&sum)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  struct Operands {
    std::uint32_t a[4], b[2];
  };
  const Operands mine{{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const std::uint64_t* all = wait_for_warp(Barrier::product, pack(&mine));
  const auto of = [&](int from) -> const Operands& { return *unpack<const Operands*>(all[from]); };
  const int group = lane() / 4, pair = 2 * (lane() % 4);
  for (int k = 0; k < 16; ++k) {
    const int owner = k % 8 / 2, half = k % 2;
    const Operands& left = of(4 * group + owner);
    for (int column = 0; column < 2; ++column) {
      const float y = value(of(4 * (pair + column) + owner).b[k / 8], half);
      for (int row = 0; row < 2; ++row) sum[2 * row + column] += value(left.a[2 * (k / 8) + row], half) * y;
    }
  }
  wait_for_warp(Barrier::product, 0);  // `mine` of every lane has been read
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
