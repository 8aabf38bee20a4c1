// The command that goes on with a run.
#pragma once

#include <string>
#include <vector>

#include "comm/transport.h"

namespace lpsgd {

/// `words`, the command that started the run in `folder`, with --out and --resume, behind the launcher that
/// `launched` names; quoted for a shell.
std::string resume_command(std::vector<std::string> words, const std::string& folder,
                           const LaunchedAs& launched);

}  // namespace lpsgd
