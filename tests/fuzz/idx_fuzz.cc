// libFuzzer: IDX files, plain and gzip, as images (first byte even) or labels. What is read has the size that
// was asked for.
#include <array>

#include "core/error.h"
#include "data/idx.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lpsgd;
  if (size == 0) return 0;
  const MemoryFile file({data + 1, size - 1});
  const std::array<std::int64_t, 2> image{4, 4};
  const std::span<const std::int64_t> shape =
      data[0] % 2 == 0 ? std::span<const std::int64_t>(image) : std::span<const std::int64_t>();
  try {
    const auto values = read_idx(file.path(), shape, "images");
    if (values.empty() || values.size() % (shape.empty() ? 1 : 16) != 0) std::abort();
  } catch (const FileError&) {
  }
  return 0;
}
