#include "trainer/python_commands.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "trainer/python_program.h"

namespace lpsgd {

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

/// Under mpirun: what the launcher told this process, which is for no program that this one starts.
void leave_launcher() {
  Words told;
  for (char** at = environ; *at != nullptr; ++at)
    if (is_for_ranks(*at)) told.emplace_back(*at, std::strcspn(*at, "="));
  for (const std::string& name : told) ::unsetenv(name.c_str());
}

/// Replaces the process. Returns only by an exception.
int become_python(const std::string& python, const std::string& command, const Words& arguments) {
  const fs::path program = fs::path(report_folder()) / ("lpsgd_" + command + ".py");
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
  // While Python starts, Ctrl-C would print a traceback: report/interrupts.py lets it through.
  sigset_t interrupt;
  ::sigemptyset(&interrupt);
  ::sigaddset(&interrupt, SIGINT);
  ::sigprocmask(SIG_BLOCK, &interrupt, nullptr);
  ::execvp(interpreter.c_str(), argv.data());
  throw ConfigError(fmt::format("{}: {} cannot be started: {}; LPSGD_PYTHON names a Python 3", command,
                                python, std::strerror(errno)));
}

/// Passes everything on, --help too.
RunCommand declare(CLI::App& app, const Words& words, const std::string& python) {
  app.set_help_flag();
  app.prefix_command();
  app.footer("Its options: lpsgd " + app.get_name() + " --help");
  const std::string name = app.get_name();
  return [name, words, python] {
    const auto at = std::find(words.begin() + 1, words.end(), name);
    return become_python(python, name, {at + 1, words.end()});
  };
}

RunCommand declare_python(CLI::App& app, const Words& words) {
  return declare(app, words, python_interpreter());
}

/// PyTorch is where its user runs it: in the PATH's Python.
RunCommand declare_with_pytorch(CLI::App& app, const Words& words) {
  return declare(app, words, python_interpreter("python3"));
}

}  // namespace

std::span<const Command> python_commands() {
  static const Command commands[] = {
      {"predict", "the cost model: samples per second for other ranks, links and codecs", declare_python},
      {"study", "train every run of a grid, resumable, with tables of all runs", declare_python},
      {"report", "figures and tables of runs", declare_python},
      {"import", "a PyTorch module as a network file with its weights", declare_with_pytorch},
  };
  return commands;
}

}  // namespace lpsgd
