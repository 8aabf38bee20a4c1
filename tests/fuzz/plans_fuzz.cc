// libFuzzer: the file of a PlanCache. Byte 0: 0 the file as it is; 1 a line for each choice, which gets the
// format and its checksum. What was read is the same after it has been written.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "core/file.h"
#include "core/log.h"
#include "nn/plan_search.h"

namespace {

/// Removed at the program's end.
struct Folder {
  Folder() {
    const bool memory = std::filesystem::is_directory("/dev/shm");  // where syncing takes no time
    std::string name = std::string(memory ? "/dev/shm" : "/tmp") + "/lpsgd-fuzz-plans-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lpsgd;
  static const Folder folder;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string device = "a device";
  const std::string path = PlanCache(folder.path, device).path();
  std::filesystem::remove(path);
  std::string first = "first", choice = "none";
  if (data[0] % 2 == 1) {
    PlanCache written(folder.path, device);
    std::string_view rest = text;
    while (!rest.empty()) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(line.size() + 1, rest.size()));
      const std::size_t colon = line.find(": ");
      if (colon == std::string_view::npos || colon == 0) continue;
      first = line.substr(0, colon);
      choice = line.substr(colon + 2);
      written.add(first, choice);
    }
    written.save();
    if (choice != "none" && PlanCache(folder.path, device).find(first) != choice) std::abort();
  } else {
    std::ofstream(path, std::ios::binary) << text;
  }
  PlanCache read(folder.path, device);
  const auto before = read.find(first);
  read.add("another", "one");
  read.save();
  const PlanCache again(folder.path, device);
  if (again.find("another") != "one" || (first != "another" && again.find(first) != before)) std::abort();
  return 0;
}
