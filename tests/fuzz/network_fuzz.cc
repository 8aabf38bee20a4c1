// libFuzzer: network files. One that is accepted has layers and a number of parameters.
#include <cstdlib>

#include "core/config.h"
#include "core/error.h"
#include "nn/network_spec.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lpsgd;
  try {
    const NetworkSpec spec(config::parse_text({reinterpret_cast<const char*>(data), size}, "fuzz.yaml"));
    if (spec.layers().empty() || spec.parameters() < 0) std::abort();
  } catch (const ConfigError&) {
  }
  return 0;
}
