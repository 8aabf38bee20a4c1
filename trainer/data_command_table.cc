// The commands of `lpsgd data` and their options.
#include <memory>

#include "trainer/command_line.h"
#include "trainer/data_commands.h"

namespace lpsgd {

namespace {

using Words = std::vector<std::string>;

RunCommand declare_check(CLI::App& app, const Words&) {
  const auto check = std::make_shared<DataCheckArguments>();
  add_config_options(app, check->config, check->overrides);
  return [check] { return data_check_command(*check); };
}

RunCommand declare_pack(CLI::App& app, const Words&) {
  const auto pack = std::make_shared<DataPackArguments>();
  add_config_options(app, pack->config, pack->overrides);
  app.add_option("--out", pack->out, "the shard to write, such as FOLDER/train.shard")
      ->required()
      ->type_name("FILE");
  const auto to_split = [](std::string& text) {
    if (text != "train" && text != "test") return "expected train or test, got '" + text + "'";
    text = std::to_string(static_cast<int>(text == "train" ? Split::train : Split::test));
    return std::string();
  };
  app.add_option("--split", pack->split, "which images")
      ->type_name("train|test")
      ->default_str("train")
      ->transform(CLI::Validator(to_split, ""));
  app.add_option("--short-side", pack->pack.short_side,
                 "shrink larger images until their shorter side has N pixels; 0: keep their size")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{65500}).description(""));
  app.add_option("--quality", pack->pack.quality, "of the JPEG files that are written, 1 to 100")
      ->type_name("Q")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{100}).description(""));
  app.add_flag("--decoded", pack->pack.decoded, "write pixels in place of files: larger, and faster to read");
  return [pack] { return data_pack_command(*pack); };
}

}  // namespace

std::span<const Command> data_commands() {
  static const Command commands[] = {
      {"check", "read every sample once, and name those that cannot be read", declare_check},
      {"pack", "write the images of a split into one file, a shard", declare_pack},
  };
  return commands;
}

}  // namespace lpsgd
