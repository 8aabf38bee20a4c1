// libFuzzer: metrics.jsonl. A line that was read is read again.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "trainer/epoch_records.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lpsgd;
  try {
    std::string again;
    const auto lines = parse_epoch_lines({reinterpret_cast<const char*>(data), size}, "fuzz.jsonl");
    for (const EpochLine& line : lines) again += line.text + '\n';
    if (parse_epoch_lines(again, "again.jsonl").size() != lines.size()) std::abort();
  } catch (const FileError&) {
  }
  return 0;
}
