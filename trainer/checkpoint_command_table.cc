// The commands of `lpsgd checkpoint` and their options.
#include <memory>

#include "trainer/checkpoint_commands.h"
#include "trainer/command_line.h"

namespace lpsgd {

namespace {

using Words = std::vector<std::string>;
using Report = CheckpointReport (*)(const CheckpointArguments&);

RunCommand run_of(const std::shared_ptr<CheckpointArguments>& arguments, Report report) {
  return [arguments, report] {
    const CheckpointReport out = report(*arguments);
    print(out.text);
    return out.status;
  };
}

std::shared_ptr<CheckpointArguments> declare(CLI::App& app, const char* help) {
  auto arguments = std::make_shared<CheckpointArguments>();
  app.add_option("run", arguments->run, help)->required()->type_name("RUN");
  app.add_flag("--json", arguments->json, "print JSON");
  return arguments;
}

RunCommand declare_list(CLI::App& app, const Words&) {
  return run_of(declare(app, "a run's folder"), checkpoint_list_command);
}

RunCommand declare_verify(CLI::App& app, const Words&) {
  return run_of(declare(app, "a run's folder, or a checkpoint's"), checkpoint_verify_command);
}

RunCommand declare_diff(CLI::App& app, const Words&) {
  const auto arguments = declare(app, "a run's folder, or a checkpoint's");
  app.add_option("a", arguments->a, "a checkpoint of the run, such as epoch-0001; or another folder")
      ->required()
      ->type_name("A");
  app.add_option("b", arguments->b, "another checkpoint of the run; without it RUN and A are compared")
      ->type_name("B");
  return run_of(arguments, checkpoint_diff_command);
}

}  // namespace

std::span<const Command> checkpoint_commands() {
  static const Command commands[] = {
      {"list", "the checkpoints of a run", declare_list},
      {"verify", "compare every file of a run's checkpoints with its checksum", declare_verify},
      {"diff", "what differs between two checkpoints: tensors, by how much, and metadata", declare_diff},
  };
  return commands;
}

}  // namespace lpsgd
