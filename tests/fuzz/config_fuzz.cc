// libFuzzer: text of a configuration. A tree that was read is the same after it has been written.
#include <cstdlib>

#include "core/config.h"
#include "core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lpsgd;
  config::Value tree;
  try {
    tree = config::parse_text({reinterpret_cast<const char*>(data), size}, "fuzz.yaml");
  } catch (const ConfigError&) {
    return 0;
  }
  const std::string text = config::emit(tree);
  if (config::emit(config::parse_text(text, "emitted.yaml")) != text) std::abort();
  return 0;
}
