#include "trainer/python_commands.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "core/error.h"

namespace lpsgd {

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

std::string setting(const char* variable, const char* usual) {
  const char* value = std::getenv(variable);
  return value && *value ? value : usual;
}

/// Under mpirun: what the launcher told this process, which is for no program that this one starts.
void leave_launcher() {
  Words told;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view name = std::string_view(*at).substr(0, std::string_view(*at).find('='));
    for (const char* begin :
         {"PMI_", "PMIX_", "MPI_LOCAL", "OMPI_COMM_WORLD_", "OMPI_MCA_ess", "OMPI_MCA_orte_", "OMPI_MCA_pmix",
          "OMPI_UNIVERSE_SIZE", "OMPI_NUM_APP_CTX", "OMPI_APP_CTX_NUM_PROCS", "OMPI_FIRST_RANKS", "OMPI_ARGV",
          "OMPI_COMMAND", "OMPI_FILE_LOCATION", "SLURM_STEP_", "SLURM_PROCID"})
      if (name.starts_with(begin)) told.emplace_back(name);
  }
  for (const std::string& name : told) ::unsetenv(name.c_str());
}

/// Replaces the process. Returns only by an exception.
int become_python(const std::string& command, const Words& arguments) {
  const std::string python = setting("LPSGD_PYTHON", "/usr/bin/python3");
  const fs::path program =
      fs::path(setting("LPSGD_REPORT", LPSGD_REPORT_FOLDER)) / ("lpsgd_" + command + ".py");
  std::error_code error;
  if (!fs::is_regular_file(program, error))
    throw ConfigError(
        fmt::format("{}: {} is missing; LPSGD_REPORT names the report folder of lpsgd's sources", command,
                    program.string()));
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (!error) ::setenv("LPSGD_PROGRAM", self.c_str(), 1);
  leave_launcher();
  std::string script = program.string();
  std::string interpreter = python;
  Words copies = arguments;
  std::vector<char*> argv{interpreter.data(), script.data()};
  for (std::string& argument : copies) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::fflush(nullptr);
  ::execvp(interpreter.c_str(), argv.data());
  throw ConfigError(fmt::format("{}: {} cannot be started: {}; LPSGD_PYTHON names a Python 3", command,
                                python, std::strerror(errno)));
}

/// Passes everything on, --help too.
RunCommand declare_python(CLI::App& app, const Words& words) {
  app.set_help_flag();
  app.prefix_command();
  app.footer("Its options: lpsgd " + app.get_name() + " --help");
  const std::string name = app.get_name();
  return [name, words] {
    const auto at = std::find(words.begin() + 1, words.end(), name);
    return become_python(name, {at + 1, words.end()});
  };
}

}  // namespace

std::span<const Command> python_commands() {
  static const Command commands[] = {
      {"predict", "the cost model: samples per second for other ranks, links and codecs", declare_python},
      {"study", "train every run of a grid, resumable, with tables of all runs", declare_python},
      {"report", "figures and tables of runs", declare_python},
  };
  return commands;
}

}  // namespace lpsgd
