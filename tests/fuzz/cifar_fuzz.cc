// libFuzzer: the records of CIFAR-10 (first byte even) and CIFAR-100.
#include <filesystem>

#include "core/error.h"
#include "data/dataset.h"
#include "tests/fuzz/memory_file.h"

namespace {

using namespace lpsgd;

/// A folder in which every file of both data sets is a link to `link`.
std::string folder() {
  std::string path = "/tmp/lpsgd_cifar_fuzz_XXXXXX";
  if (!::mkdtemp(path.data())) std::abort();
  for (int i = 1; i <= 5; ++i)
    std::filesystem::create_symlink("link", path + "/data_batch_" + std::to_string(i) + ".bin");
  for (const char* name : {"test_batch.bin", "train.bin", "test.bin"})
    std::filesystem::create_symlink("link", path + "/" + name);
  return path;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const struct Folder {
    std::string path = folder();
    ~Folder() { std::filesystem::remove_all(path); }
  } root;
  if (size == 0) return 0;
  const MemoryFile file({data + 1, size - 1});
  std::filesystem::remove(root.path + "/link");
  std::filesystem::create_symlink(file.path(), root.path + "/link");
  DataOptions options;
  options.dataset = data[0] % 2 == 0 ? "cifar10" : "cifar100";
  options.root = root.path;
  try {
    const auto set = std::dynamic_pointer_cast<const ImageDataset>(open_dataset(options, Split::train));
    std::vector<std::uint8_t> unused;
    for (std::int64_t i = 0; i < set->size(); ++i)
      if (set->label(i) >= set->classes() || set->image(i, unused).bytes.size() != 3072 ||
          set->name(i).empty())
        std::abort();
  } catch (const FileError&) {
  }
  return 0;
}
