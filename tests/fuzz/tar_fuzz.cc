// libFuzzer: tar archives. Every member lies in the file.
#include "core/error.h"
#include "data/tar.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lpsgd;
  const MemoryFile memory({data, size});
  const InputFile file(memory.path());
  try {
    for (const TarMember& member : read_tar_index(file)) {
      if (member.offset > size || member.size > size - member.offset) std::abort();
      std::vector<std::uint8_t> bytes(member.size);
      file.read(member.offset, bytes);
    }
  } catch (const FileError&) {
  }
  return 0;
}
