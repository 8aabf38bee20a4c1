#include "trainer/print.h"

#include <cstdio>

#include "core/error.h"

namespace lpsgd {

int print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw FileError("standard output cannot be written");
  return 0;
}

void tell(const std::string& text) noexcept {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size()) std::fflush(stdout);
}

}  // namespace lpsgd
