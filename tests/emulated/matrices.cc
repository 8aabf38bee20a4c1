// Loads of matrices by a warp, and copies into shared memory that go on beside the thread.
#include <cstring>

#include "tests/emulated/device.h"
#include "tests/emulated/machine.h"

namespace lpsgd::emulated {

void load_matrices(const void* row, bool transposed, std::uint32_t (&out)[4]) {
  const std::uint64_t* rows = wait_for_warp(Barrier::matrices, pack(row));
  const int group = lane() / 4, pair = 2 * (lane() % 4);
  const auto row_of = [&](int matrix, int r) {
    const std::uint64_t from = rows[8 * matrix + r];
    if (from % 16 != 0) undefined("a row of a matrix that is not aligned to 16 bytes");
    return unpack<const std::uint16_t*>(from);
  };
  for (int matrix = 0; matrix < 4; ++matrix) {
    if (transposed)
      out[matrix] = row_of(matrix, pair)[group] | std::uint32_t{row_of(matrix, pair + 1)[group]} << 16;
    else
      std::memcpy(&out[matrix], row_of(matrix, group) + pair, sizeof out[matrix]);
  }
  wait_for_lanes(Barrier::matrices);  // all lanes have read before one goes on
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
