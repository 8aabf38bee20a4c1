// libFuzzer: text of a configuration. A tree that was read is the same after it has been written, and so is
// what a run makes of it. After a zero byte: an override as of --set, and after the next one another.
#include <cstdlib>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/error.h"
#include "tests/fuzz/memory_file.h"
#include "trainer/run_config.h"

namespace {

using namespace lpsgd;

void read_tree(const std::string& text, const std::vector<std::string>& overrides) {
  config::Value tree;
  try {
    tree = config::parse_text(text, "fuzz.yaml");
  } catch (const ConfigError&) {
    return;
  }
  const std::string emitted = config::emit(tree);
  if (config::emit(config::parse_text(emitted, "emitted.yaml")) != emitted) std::abort();
  for (const std::string& override : overrides) try {
      config::apply_override(tree, override);
    } catch (const ConfigError&) {
    }
  config::parse_text(config::emit(tree), "changed.yaml");
}

std::span<const std::uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

void load_run(const std::string& text, const std::vector<std::string>& overrides) {
  RunConfig run;
  try {
    run = load_run_config(MemoryFile(bytes_of(text)).path(), overrides, config::Environment::if_set);
  } catch (const ConfigError&) {
    return;
  } catch (const FileError&) {  // of a network
    return;
  }
  const std::string resolved = resolved_text(run);
  const RunConfig again =
      load_run_config(MemoryFile(bytes_of(resolved)).path(), {}, config::Environment::if_set);
  if (resolved_text(again) != resolved) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::string> parts(1);
  for (const char c : std::string_view(reinterpret_cast<const char*>(data), size))
    if (c == 0)
      parts.emplace_back();
    else
      parts.back() += c;
  const std::string text = parts.front();
  parts.erase(parts.begin());
  read_tree(text, parts);
  load_run(text, parts);
  return 0;
}
