// Standard output.
#pragma once

#include <string>

namespace lpsgd {

/// Writes the text to standard output and returns 0. FileError when that fails.
int print(const std::string& text);
/// The same, of a run that goes on if the text cannot be written: its terminal may have been closed.
void tell(const std::string& text) noexcept;

}  // namespace lpsgd
