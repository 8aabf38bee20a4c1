#include "nn/network_file.h"

#include <fmt/format.h>

#include "core/config_shape.h"
#include "nn/layer.h"

namespace lpsgd {

using config::Value;

namespace {

/// Keeps the subtree as it is: it is read later, when the parameters in its expressions are known.
void subtree(config::Visitor& v, const char* key, const char* type, const char* help, Value& into) {
  v.custom(
      key, type, help, [&into](const Value& value, const std::string&) { into = value; },
      [] { return Value(); });
}

void input_field(config::Visitor& v, Value& into) {
  subtree(v, "input", "name or list of names", "what it reads; by default the layer before it", into);
}

void condition_field(config::Visitor& v, Value& into) {
  subtree(v, "if", "true or false", "false: the entry is left out, and its name stands for its input", into);
}

}  // namespace

namespace {

void parse_input(const Value& value, const std::string& path, NetworkFile& file) {
  if (!value.is_sequence() || value.items.empty())
    config::fail(value.origin, path, "expected a list of integers, such as [32, 32, 3]");
  for (std::size_t i = 0; i < value.items.size(); ++i) {
    const Value& item = value.items[i];
    const bool is_any = i == 0 && item.is_scalar() && item.scalar == "any";
    file.has_open_frames = file.has_open_frames || is_any;
    file.input.push_back(
        is_any ? 1 : config::to_integer(item, fmt::format("{}[{}]", path, i), {.min = 1, .max = 1 << 20}));
  }
}

}  // namespace

void fields(config::Visitor& v, NetworkFile& file) {
  v.field("name", file.name, "the name in `show` and in the run's folder");
  v.required();
  v.custom(
      "input", "list of integers from 1 to 1048576",
      "shape of one sample: [H, W, C], [frames, features], [tokens] or [features]; `any` as the number of "
      "frames or tokens leaves it to the run",
      [&file](const Value& value, const std::string& path) { parse_input(value, path, file); },
      [] { return Value(); });
  v.required();
  subtree(v, "classes", fmt::format("integer from 1 to {}", max_classes).c_str(),
          "the last layer's features; the loss is softmax cross-entropy over them", file.classes);
  subtree(v, "parameters", "map of values", "values that expressions use as `$name`", file.parameters);
  subtree(v, "blocks", "map of blocks", "named lists of layers, with parameters of their own", file.blocks);
  v.required();
  subtree(v, "layers", "list of layers", "the network, from input to class scores", file.layers);
}

void fields(config::Visitor& v, LayerEntry& entry, const char* kind) {
  subtree(v, kind, "word, or list of inputs", "the layer's name; the kind by default", entry.label);
  input_field(v, entry.input);
  condition_field(v, entry.condition);
}

void fields(config::Visitor& v, BlockEntry& entry) {
  subtree(v, "block", "word", "which block", entry.label);
  subtree(v, "name", "word", "prefix of its layers' names; by default the block's own name", entry.name);
  subtree(v, "repeat", "integer", "how many copies in a row, named name.0, name.1, ...", entry.repeat);
  subtree(v, "with", "map of values", "the block's parameters", entry.with);
  subtree(v, "first", "map of values", "parameters of the first repetition only", entry.first);
  input_field(v, entry.input);
  condition_field(v, entry.condition);
}

void fields(config::Visitor& v, BlockDefinition& block) {
  subtree(v, "parameters", "map of values", "the block's parameters; null: must be given", block.parameters);
  v.required();
  subtree(v, "layers", "list of layers", "the block's layers", block.layers);
}

std::string network_reference() {
  config::Describer file, block;
  NetworkFile file_keys;
  fields(file, file_keys);
  BlockEntry block_keys;
  fields(block, block_keys);
  std::string out =
      fmt::format("### The file\n\n{}\n### `block`\n\n{}", config::markdown_table(file.fields()),
                  config::markdown_table(block.fields()));
  for (const LayerKind& kind : layer_kinds()) {
    config::Describer keys;
    LayerEntry entry;
    fields(keys, entry, kind.word);
    kind.make()->fields(keys);
    out += fmt::format("\n### `{}`\n\n{}\n\n{}", kind.word, kind.help, config::markdown_table(keys.fields()));
  }
  return out;
}

}  // namespace lpsgd
