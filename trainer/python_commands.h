// The commands whose work is done by a Python program of the report folder.
#pragma once

#include <span>

#include "trainer/command_line.h"

namespace lpsgd {

/// `predict`, `study`, `report` and `import`. The process becomes Debian's Python (for `import` the PATH's,
/// or for all LPSGD_PYTHON), running lpsgd_<command>.py of the source tree's report folder (or LPSGD_REPORT)
/// with the words after the command. LPSGD_PROGRAM tells it this program's path. ConfigError if Python or the
/// file is missing.
std::span<const Command> python_commands();

}  // namespace lpsgd
