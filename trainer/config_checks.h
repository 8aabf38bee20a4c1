// Checks of a configuration across its sections, beside those of each key.
#pragma once

#include <string_view>

#include "trainer/run_config.h"

namespace lpsgd {

/// Whether what section `optimizer`, `schedule`, `exchange` or `sync` chooses reads this key of the section.
bool is_read(const RunConfig& run, std::string_view section, std::string_view key);

/// Refuses what does not fit together, and keys that were written but would have no effect. Throws
/// ConfigError "sync.from: ...".
void check_combinations(const RunConfig& run);

}  // namespace lpsgd
