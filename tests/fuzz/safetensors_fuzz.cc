// libFuzzer: safetensors files. Every value of every tensor can be read.
#include <algorithm>
#include <cstdlib>

#include "core/error.h"
#include "core/safetensors.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lpsgd;
  const MemoryFile input({data, size});
  try {
    const SafetensorsFile file(input.path());
    for (const StoredTensor& tensor : file.tensors()) {
      if (!file.find(tensor.name)) std::abort();
      const auto numbers = std::ranges::count_if(tensor.values, [](float value) { return value == value; });
      if (numbers > std::ssize(tensor.values)) std::abort();
    }
  } catch (const FileError&) {
  }
  return 0;
}
