// libFuzzer: a checkpoint's manifest.json. Its checksum is made right first: without that nothing else of the
// parser would be reached.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/checksum.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "trainer/checkpoint_manifest.h"
#include "trainer/json_text.h"

namespace {

using namespace lpsgd;

std::string with_checksum(const std::string& text) {
  try {
    nlohmann::ordered_json manifest = parse_json(text, "fuzz");
    if (!manifest.is_object()) return text;
    manifest.erase("checksum");
    const std::string checked = json_text(manifest);
    manifest["checksum"] = checksum(std::as_bytes(std::span(checked)));
    return json_text(manifest);
  } catch (const FileError&) {
    return text;
  }
}

struct Folder {
  std::string path = "/tmp/lpsgd_manifest_fuzz_XXXXXX";
  Folder() {
    if (!::mkdtemp(path.data())) std::abort();
  }
  ~Folder() { std::filesystem::remove_all(path); }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  const std::string text = with_checksum({reinterpret_cast<const char*>(data), size});
  write_file(folder.path + "/manifest.json", text);
  try {
    if (read_manifest(folder.path).ranks < 1) std::abort();
  } catch (const FileError&) {
  }
  return 0;
}
