// The command line: a table of commands. Each declares its options and returns the function that runs it.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "trainer/print.h"

namespace lpsgd {

/// What a command declared, ready to run. Returns the process's exit status.
using RunCommand = std::function<int()>;

struct Command {
  const char* name;
  const char* help;
  /// Adds the options to `app`; `words` is the whole command line. Null for a group of commands.
  RunCommand (*declare)(CLI::App& app, const std::vector<std::string>& words);
  std::span<const Command> group = {};
  /// Under mpirun the processes are ranks, which the command itself starts by run_mpi_rank().
  bool uses_ranks = false;
};

/// The commands of `lpsgd`, and those of `lpsgd bench`, `lpsgd data` and `lpsgd checkpoint`.
std::span<const Command> all_commands();
std::span<const Command> bench_commands();
std::span<const Command> data_commands();
std::span<const Command> checkpoint_commands();

/// Runs the command that the words name. Under mpirun all ranks must run the same command, whether it uses
/// ranks or not: otherwise rank 0 prints what each rank runs, and the status is 2. For a mistake in the words
/// rank 0 throws ConfigError, or prints the message, and the other ranks return its status.
int run_command_line(const std::vector<std::string>& words);

/// Adds the configuration file and --set.
void add_config_options(CLI::App& app, std::string& config, std::vector<std::string>& overrides);
/// Adds --set alone.
void add_override_option(CLI::App& app, std::vector<std::string>& overrides);

}  // namespace lpsgd
