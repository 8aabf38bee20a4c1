// The commands and their options; those of `bench` are in bench/command_table.cc, those of `data` in
// data_command_table.cc, those of `checkpoint` in checkpoint_command_table.cc, those that Python programs do
// in python_commands.cc.
#include <algorithm>
#include <iterator>
#include <memory>

#include "core/name_patterns.h"
#include "trainer/command_line.h"
#include "trainer/commands.h"
#include "trainer/config_reference.h"
#include "trainer/environment.h"
#include "trainer/python_commands.h"

namespace lpsgd {

namespace {

using Words = std::vector<std::string>;

/// A run's folder, and which of its checkpoints.
void add_run_options(CLI::App& app, std::string& run, std::string& checkpoint) {
  app.add_option("run", run, "a run's folder")->required()->type_name("RUN");
  app.add_option(
         "--checkpoint", checkpoint,
         "a checkpoint of the run, such as epoch-0010, a checkpoint's folder, or a .safetensors file; "
         "default: the run's newest checkpoint")
      ->type_name("CHECKPOINT");
}

std::string not_a_whole_number(const std::string& text) {
  const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  return digits && text.size() <= 18 ? "" : "expected a whole number from 0 on, got '" + text + "'";
}

RunCommand declare_train(CLI::App& app, const Words& words) {
  const auto train = std::make_shared<TrainArguments>();
  train->command_line = words;
  add_config_options(app, train->config, train->overrides);
  CLI::Option* out =
      app.add_option("--out", train->out, "the run's folder (default runs/<config name>-<time>)");
  out->type_name("DIR");
  app.add_flag("--resume", train->resume, "continue from the newest checkpoint in --out, if there is one")
      ->needs(out);
  app.add_flag("--resume-required", train->resume_required, "as --resume, but refuse to start without one")
      ->needs(out);
  CLI::Option* init = app.add_option(
      "--init", train->init,
      "start from these weights and running statistics: a .safetensors file with PyTorch's names, a "
      "checkpoint's folder, or a run's. A run that is resumed goes on from its own");
  init->type_name("FILE");
  app.add_option("--init-skip", train->init_skip,
                 "layers or tensors that start from random values in spite of --init; the file's are passed "
                 "over. Patterns with *, ? and {a,b}, separated by commas; may be repeated")
      ->type_name("NAME,...")
      ->allow_extra_args(false)
      ->needs(init);
  app.add_option("--steps", train->steps,
                 "stop after N steps in all, without evaluation; 0 writes the initial weights")
      ->type_name("N")
      ->take_last()
      ->check(CLI::Validator(not_a_whole_number, ""));
  const std::map<std::string, ProgressMode> modes{{"auto", ProgressMode::automatic},
                                                  {"plain", ProgressMode::plain},
                                                  {"terminal", ProgressMode::terminal},
                                                  {"none", ProgressMode::none}};
  const auto to_mode = [modes](std::string& text) {
    const auto mode = modes.find(text);
    if (mode == modes.end()) return "expected auto, plain, terminal or none, got '" + text + "'";
    text = std::to_string(static_cast<int>(mode->second));
    return std::string();
  };
  app.add_option("--progress", train->progress,
                 "plain: lines; terminal: one line, rewritten; none; auto: terminal where standard output is "
                 "the terminal that lpsgd was started on, else plain")
      ->type_name("auto|plain|terminal|none")
      ->default_str("auto")
      ->transform(CLI::Validator(to_mode, ""));
  app.add_option("--check-replicas", train->check_replicas,
                 "compare the weights and the momentum of all ranks after every N steps and before each "
                 "checkpoint; a difference ends the run")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000'000}));
  app.add_option("--trace", train->trace,
                 "write a Chrome trace of each rank into this folder (a million spans at most: use --steps)")
      ->type_name("DIR");
  return [train] {
    train->resume |= train->resume_required;
    std::vector<std::string> skip;
    for (const std::string& list : train->init_skip)
      std::ranges::copy(split_patterns(list), std::back_inserter(skip));
    train->init_skip = std::move(skip);
    return train_command(*train);
  };
}

RunCommand declare_show(CLI::App& app, const Words&) {
  const auto show = std::make_shared<ShowArguments>();
  add_config_options(app, show->config, show->overrides);
  app.add_flag("--json", show->json, "print JSON");
  return [show] { return print(show_command(*show)); };
}

RunCommand declare_eval(CLI::App& app, const Words&) {
  const auto eval = std::make_shared<EvalArguments>();
  add_config_options(app, eval->config, eval->overrides);
  app.add_option("--checkpoint", eval->checkpoint,
                 "checkpoint folder, a run's folder for its newest, or a .safetensors file")
      ->required()
      ->type_name("DIR");
  app.add_flag("--json", eval->json, "print JSON");
  return [eval] { return print(eval_command(*eval)); };
}

RunCommand declare_infer(CLI::App& app, const Words&) {
  const auto infer = std::make_shared<InferArguments>();
  add_run_options(app, infer->run, infer->checkpoint);
  app.add_option("images", infer->images, "image files, or folders of them")->required()->type_name("IMAGE");
  app.add_option("--top", infer->top, "how many classes to print for each image")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000}));
  add_override_option(app, infer->overrides);
  app.add_flag("--json", infer->json, "print JSON");
  return [infer] { return infer_command(*infer); };
}

RunCommand declare_export(CLI::App& app, const Words&) {
  const auto arguments = std::make_shared<ExportArguments>();
  add_run_options(app, arguments->run, arguments->checkpoint);
  app.add_option("--onnx", arguments->onnx, "the file to write")->required()->type_name("FILE");
  app.add_flag(
      "--state", arguments->state,
      "the state of recurrent layers becomes input and output of the model; without it every sequence "
      "starts from zeros");
  app.add_flag("--json", arguments->json, "print JSON");
  return [arguments] { return print(export_command(*arguments)); };
}

RunCommand declare_quantize(CLI::App& app, const Words&) {
  const auto quantize = std::make_shared<QuantizeArguments>();
  app.add_option("in", quantize->in, "safetensors file of float32 tensors (steps, K, n)")
      ->required()
      ->type_name("IN.safetensors");
  app.add_option("--codec", quantize->codec, "as in the configuration: '{kind: onebit, bucket: 64}'")
      ->required()
      ->type_name("CODEC");
  app.add_option("--out", quantize->out, "safetensors file to write")
      ->required()
      ->type_name("OUT.safetensors");
  app.add_option("--seed", quantize->seed, "of the dither")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{4294967295}));
  return [quantize] { return print(quantize_command(*quantize)); };
}

RunCommand declare_doctor(CLI::App& app, const Words&) {
  const auto doctor = std::make_shared<DoctorArguments>();
  app.add_flag("--json", doctor->json, "print JSON");
  app.add_flag("--ranks-only", doctor->ranks_only,
               "under mpirun: check where the ranks are and what they exchange, not the machines");
  app.footer("Under mpirun -n K it checks the ranks of that job. Status 1: at least one check is an error");
  return [doctor] { return doctor_command(*doctor); };
}

struct HelpArguments {
  std::string key;
  bool schema = false, markdown = false;
};

int help(const HelpArguments& arguments, CLI::App& root) {
  if (arguments.schema) return print(config_json_schema());
  if (arguments.markdown) return print(config_reference_markdown());
  const std::string& key = arguments.key;
  if (key.empty())
    return print(root.get_formatter()->make_help(&root, root.get_name(), CLI::AppFormatMode::Normal) +
                 "\nSections of a configuration, for lpsgd help KEY:\n" + config_sections());
  std::vector<std::string> names;
  for (const Command& command : all_commands()) names.emplace_back(command.name);
  const bool is_command = std::find(names.begin(), names.end(), key) != names.end();
  if (is_command && !is_config_key(key)) return print(root.get_subcommand(key)->help(root.get_name()));
  return print(config_help(key, names) +
               (is_command ? "\nThe command of that name: lpsgd " + key + " --help\n" : ""));
}

RunCommand declare_help(CLI::App& app, const Words&) {
  const auto arguments = std::make_shared<HelpArguments>();
  app.add_option("key", arguments->key, "a key or section of the configuration, or a command")
      ->type_name("KEY");
  app.add_flag("--schema", arguments->schema, "print the configuration's JSON schema, for editors");
  app.add_flag("--markdown", arguments->markdown, "print the tables of docs/configuration.md");
  return [arguments, &app] { return help(*arguments, *app.get_parent()); };
}

RunCommand declare_version(CLI::App& app, const Words&) {
  const auto json = std::make_shared<bool>(false);
  app.add_flag("--json", *json, "print JSON");
  return [json] { return print(*json ? version_json() + "\n" : version_text()); };
}

}  // namespace

std::span<const Command> all_commands() {
  static const std::vector<Command> commands = [] {
    std::vector<Command> all{
        {"train", "train a network; under mpirun, one process is one rank", declare_train, {}, true},
        {"show", "layers and tensors: shape, parameters, FLOPs, codec, bytes on the wire", declare_show},
        {"eval", "loss and accuracy of a checkpoint", declare_eval},
        {"infer", "classify images by a run's network", declare_infer},
        {"export", "write a run's network with its weights as an ONNX model", declare_export},
        {"quantize", "tensors (steps, K, n) in, exchanged means (steps, n) out", declare_quantize},
        {"data", "check a data set, or pack its images into one file", nullptr, data_commands()},
        {"checkpoint", "list, verify or compare the checkpoints of a run", nullptr, checkpoint_commands()},
        {"bench", "how fast the parts are", nullptr, bench_commands()},
        {"doctor", "what this machine can do and what is wrong, with advice", declare_doctor, {}, true},
        {"help", "what a key of the configuration means, its values and its default", declare_help},
        {"version", "build, backends, library versions", declare_version},
    };
    all.insert(all.end() - 3, python_commands().begin(), python_commands().end());
    return all;
  }();
  return commands;
}

}  // namespace lpsgd
