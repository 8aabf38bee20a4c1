#include "trainer/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "comm/transport.h"
#include "core/config.h"
#include "core/error.h"
#include "trainer/environment.h"
#include "trainer/mpi_rank.h"
#include "trainer/print.h"

namespace lpsgd {

namespace {

/// "train", "bench codec": the name of a command as it is typed.
std::string full_name(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  if (!parent) return "";
  const std::string above = full_name(*parent);
  return above.empty() ? app.get_name() : above + " " + app.get_name();
}

struct DeclaredCommand {
  CLI::App* app;
  RunCommand run;
  bool uses_ranks;
};

/// No value of any option may be empty: it is mostly a variable of a script that is not set.
void refuse_empty_values(CLI::App& app) {
  const auto given = [](const std::string& value) { return std::string(value.empty() ? "is empty" : ""); };
  for (CLI::Option* option : app.get_options())
    if (option->get_items_expected_max() > 0) option->check(given);
}

void declare(CLI::App& app, std::span<const Command> commands, const std::vector<std::string>& words,
             std::vector<DeclaredCommand>& declared) {
  app.require_subcommand(1);
  for (const Command& command : commands) {
    CLI::App* added = app.add_subcommand(command.name, command.help);
    if (command.declare) {
      declared.push_back({added, command.declare(*added, words), command.uses_ranks});
      refuse_empty_values(*added);
    } else {
      declare(*added, command.group, words, declared);
    }
  }
}

/// Refuses a word that is no command.
void check_command(const std::vector<std::string>& words, std::span<const Command> commands,
                   const std::string& group = "") {
  std::vector<std::string> names;
  for (const Command& command : commands) names.emplace_back(command.name);
  const auto word = std::find_if(words.begin(), words.end(),
                                 [](const std::string& w) { return w.empty() || w.front() != '-'; });
  const std::string list = fmt::format("commands: {}", fmt::join(names, ", "));
  if (word == words.end()) {
    if (words.empty()) throw ConfigError(fmt::format("lpsgd {}needs a command; {}", group, list));
    return;
  }
  const auto at = std::find(names.begin(), names.end(), *word);
  if (at == names.end())
    throw ConfigError(
        fmt::format("no command '{}{}'{}; {}", group, *word, config::did_you_mean(*word, names), list));
  const Command& command = commands[static_cast<std::size_t>(at - names.begin())];
  if (!command.declare) check_command({word + 1, words.end()}, command.group, *word + " ");
}

/// The mistake in one line. An unknown option is named first: it is a frequent cause of the others.
std::string describe(const CLI::App& root, const CLI::ParseError& error) {
  const CLI::App* app = &root;
  while (!app->get_subcommands().empty()) app = app->get_subcommands().back();
  const std::string name = full_name(*app);
  const std::string prefix = name.empty() ? "" : name + ": ";
  const std::string hint = fmt::format("'lpsgd {}--help' lists the options", name.empty() ? "" : name + " ");
  for (const std::string& word : root.remaining(true)) {
    if (word.empty() || word.front() != '-') return fmt::format("{}unexpected '{}'; {}", prefix, word, hint);
    const std::string option = word.substr(0, word.find('='));
    std::vector<std::string> options;
    for (const CLI::Option* known : app->get_options())
      for (const std::string& long_name : known->get_lnames()) options.push_back("--" + long_name);
    return fmt::format("{}no option '{}'{}; {}", prefix, option, config::did_you_mean(option, options), hint);
  }
  return fmt::format("{}{}; {}", prefix, error.what(), hint);
}

/// Ends a command line with a mistake.
int refuse(const std::string& mistake) {
  if (const int status = meet_other_ranks("", mistake)) return status;
  if (launched_as().rank == 0) throw ConfigError(mistake);
  return 2;
}

}  // namespace

int run_command_line(const std::vector<std::string>& words) {
  CLI::App app{"Data-parallel SGD with low-precision gradient exchange"};
  app.name("lpsgd");
  app.set_version_flag("--version", version_text());
  app.footer("Several ranks: mpirun -n K lpsgd train CONFIG\nKeys of a configuration: lpsgd help KEY");
  std::vector<DeclaredCommand> declared;
  declare(app, all_commands(), words, declared);
  std::vector<std::string> arguments(words.begin() + 1, words.end());
  try {
    check_command(arguments, all_commands());
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
    app.parse(arguments);
  } catch (const ConfigError& e) {
    return refuse(e.what());
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != 0) return refuse(describe(app, e));
    if (const int status = meet_other_ranks("--help or --version", "")) return status;
    if (launched_as().rank != 0) return 0;
    std::ostringstream text;
    app.exit(e, text, text);
    return print(text.str());
  }
  for (const auto& [command, run, uses_ranks] : declared) {
    if (!*command) continue;
    if (!uses_ranks)
      if (const int status = meet_other_ranks(full_name(*command), "")) return status;
    if (!uses_ranks && launched_as().rank != 0) return 0;  // such a command has no use for several ranks
    return run();
  }
  return 0;
}

void add_config_options(CLI::App& app, std::string& config, std::vector<std::string>& overrides) {
  app.add_option("config", config, "configuration file (YAML)")->required();
  add_override_option(app, overrides);
}

void add_override_option(CLI::App& app, std::vector<std::string>& overrides) {
  app.add_option("--set", overrides, "override a key: a.b=value; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
}

}  // namespace lpsgd
