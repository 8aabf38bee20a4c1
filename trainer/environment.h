// A run's environment: machine, libraries, build. Field names are those of torch.utils.collect_env, if it has
// them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "comm/transport.h"
#include "core/device.h"

namespace lpsgd {

/// The text of environment.json. `device` and `algorithms` (Network::choices()) are this rank's. Collective.
/// `name`: of the run. `classes`: their names by label, which are left out if there are none.
std::string environment_json(Transport& transport, const std::string& name, Device device,
                             const std::vector<std::string>& classes,
                             const std::vector<std::string>& algorithms,
                             const std::vector<std::string>& command_line);

/// The value that an environment.json holds, with room for the names of a million classes. FileError.
nlohmann::ordered_json read_environment(const std::string& path);

/// The MPI library that this program is linked with: "MPICH Version: 4.0.2", "Open MPI v4.1.4". Works before
/// MPI is initialised.
std::string mpi_version();

/// Of the sources that the program was built from, as `git describe` names it.
std::string revision();

/// The value of the first line `KEY=value` or `KEY : value` of a system file; "unknown" if there is none.
std::string value_in_file(const char* path, const std::string& key, char separator);

/// Of this machine.
std::string hostname();

/// What was built, and the libraries that are loaded.
nlohmann::ordered_json build_and_libraries();

/// `lpsgd version`, without and with --json: build, backends, library versions.
std::string version_json();
std::string version_text();

}  // namespace lpsgd
