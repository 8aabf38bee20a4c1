// libFuzzer: safetensors files. Every value of every tensor can be read.
#include "core/error.h"
#include "core/safetensors.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lpsgd;
  const MemoryFile input({data, size});
  try {
    const SafetensorsFile file(input.path());
    volatile float read = 0;
    for (const StoredTensor& tensor : file.tensors()) {
      if (!file.find(tensor.name)) std::abort();
      for (const float value : tensor.values) read = value;
    }
  } catch (const FileError&) {
  }
  return 0;
}
