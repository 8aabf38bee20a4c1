// Logging to standard error through spdlog, one line for each event. If there are several ranks, the rank is
// in front. The environment variable LPSGD_LOG sets the level: trace, debug, info, warning, error or off. The
// default is info on rank 0 and warning on other ranks.
#pragma once

#include <spdlog/spdlog.h>

namespace lpsgd {

/// Sets the pattern and the level of this process, which logs to stderr. May be called again.
void init_logging(int rank, int size);

namespace log = spdlog;

}  // namespace lpsgd
