// libFuzzer: shards. With an even first byte the index's checksum is made right, so that the rest is reached.
#include <cstring>
#include <vector>

#include "core/checksum.h"
#include "core/error.h"
#include "data/shard_format.h"
#include "data/shards.h"
#include "tests/fuzz/memory_file.h"

namespace {

using namespace lpsgd;

void make_checksum_right(std::vector<std::uint8_t>& bytes) {
  if (bytes.size() < sizeof(shard::Header) + sizeof(shard::Footer)) return;
  const std::size_t at = bytes.size() - sizeof(shard::Footer);
  auto footer = shard::load<shard::Footer>(bytes.data() + at);
  const std::size_t end = at + offsetof(shard::Footer, checksum);
  if (footer.index > end) return;
  footer.checksum = checksum64(std::as_bytes(std::span(bytes).subspan(footer.index, end - footer.index)));
  std::memcpy(bytes.data() + at, &footer, sizeof footer);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::vector<std::uint8_t> bytes(data + 1, data + size), unused;
  if (data[0] % 2 == 0) make_checksum_right(bytes);
  const MemoryFile file(bytes);
  DataOptions options;
  options.dataset = "images";
  options.shards = file.path();
  try {
    const auto set = open_shards(options, Split::train);
    std::uint64_t sum = 0;
    for (std::int64_t i = 0; i < set->size(); ++i) {
      sum += set->name(i).size();
      if (set->label(i) < 0 || set->label(i) >= set->classes()) std::abort();
      try {
        for (const std::uint8_t byte : set->image(i, unused).bytes) sum += byte;
      } catch (const FileError&) {
      }
    }
    if (sum == 0) std::abort();  // names are never empty; the sum keeps the reads
  } catch (const FileError&) {
  }
  return 0;
}
