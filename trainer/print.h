// Standard output.
#pragma once

#include <string>

namespace lpsgd {

/// Writes the text to standard output and returns 0. FileError when that fails.
int print(const std::string& text);

}  // namespace lpsgd
