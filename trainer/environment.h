// Where a run ran: machine, libraries, build. Field names are those of torch.utils.collect_env where they
// apply.
#pragma once

#include <string>
#include <vector>

#include "comm/transport.h"

namespace lpsgd {

/// environment.json's text. Collective.
std::string environment_json(Transport& transport, const std::vector<std::string>& command_line);

/// `lpsgd version`: build, backends, library versions.
std::string version_json();
std::string version_text();

}  // namespace lpsgd
