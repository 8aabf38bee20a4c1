// Logging to standard error through spdlog: one line an event, the rank in front where there are several.
// Level from LPSGD_LOG (trace, debug, info, warning, error, off); default info on rank 0, warning elsewhere.
#pragma once

#include <spdlog/spdlog.h>

namespace lpsgd {

/// Sets pattern and level for this process. Call once, when rank and size are known.
void init_logging(int rank, int size);

namespace log = spdlog;

}  // namespace lpsgd
