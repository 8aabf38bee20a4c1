// Reads a network file into a graph: expands blocks and repetition, and evaluates expressions
// (docs/networks.md describes the language).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "nn/expression.h"
#include "nn/graph.h"
#include "nn/graph_builder.h"
#include "nn/network_file.h"
#include "nn/node_names.h"

namespace lpsgd {

namespace {

using config::Origin;
using config::Value;

constexpr std::size_t max_entries = 200'000;  // read, switched-off ones counted
constexpr std::int64_t max_repeat = 10'000;
constexpr std::size_t max_block_depth = 32;

std::vector<std::string> keys_of(const Value& map) {
  std::vector<std::string> out;
  for (const Value::Entry& e : map.entries) out.push_back(e.key);
  return out;
}

Origin origin_of(const Value& map, const char* key) {
  const Value* v = map.find(key);
  return v ? v->origin : map.origin;
}

/// An entry as a map whose first key is its kind: "- relu" is short for "- {relu: }".
Value entry_map(const Value& entry, const std::string& path) {
  Value map = Value::map();
  map.origin = entry.origin;
  if (entry.is_scalar()) {
    map.entries.push_back({entry.scalar, entry.origin, Value()});
    map.entries[0].value.origin = entry.origin;
  } else if (entry.is_map() && !entry.entries.empty()) {
    map.entries = entry.entries;
  } else {
    config::fail(entry.origin, path, "expected a layer such as {conv: conv1, filters: 16, kernel: 3}");
  }
  return map;
}

const LayerKind& find_kind(const std::string& word, const Value& map, const std::string& path) {
  std::vector<std::string> known{"block"};
  for (const LayerKind& kind : layer_kinds()) {
    if (word == kind.word) return kind;
    known.emplace_back(kind.word);
  }
  for (const Value::Entry& e : map.entries)
    if (std::find(known.begin(), known.end(), e.key) != known.end())
      config::fail(map.entries[0].origin, path,
                   fmt::format("an entry begins with its kind: write '{}' first", e.key));
  config::fail(map.entries[0].origin, path,
               fmt::format("unknown layer kind '{}'{}; known: {}", word, config::did_you_mean(word, known),
                           fmt::join(known, ", ")));
}

bool is_skipped(const Value& condition, const std::string& name) {
  return !condition.is_null() && !config::to_bool(condition, name + ".if");
}

BlockDefinition read_definition(const Value& value, const std::string& name) {
  BlockDefinition out;
  config::read(value, "blocks." + name, out, config::Environment::keep);
  return out;
}

/// Refuses values for parameters that the block does not have.
void check_given(const Value& parameters, const Value& given, const std::string& path) {
  const std::vector<std::string> known = keys_of(parameters);
  if (!given.is_map() && !given.is_null()) config::fail(given.origin, path, "expected a map of parameters");
  for (const Value::Entry& e : given.entries)
    if (std::find(known.begin(), known.end(), e.key) == known.end())
      config::fail(e.origin, path,
                   fmt::format("the block has no parameter '{}'{}; it has: {}", e.key,
                               config::did_you_mean(e.key, known), fmt::join(known, ", ")));
}

/// The values that an entry gives a block's parameters, with the parameters of the list that it stands in.
struct GivenParameters {
  const Value& with;
  const Value* first;  // null in all repetitions but the first
  const ParameterScope& scope;
};

/// Sets the declared parameters in `scope`. A value in `first` goes before one in `with`, and that before the
/// declared default. A default may use parameters declared before it.
void declare(const Value& declared, ParameterScope& scope, const GivenParameters* given,
             const std::string& path) {
  if (!declared.is_map() && !declared.is_null()) config::fail(declared.origin, path, "expected a map");
  for (const Value::Entry& e : declared.entries) {
    const std::string where = path + "." + e.key;
    if (!is_valid_name(e.key) || e.key.find_first_of(".-") != std::string::npos)
      config::fail(e.origin, path, fmt::format("'{}' is not a parameter's name", e.key));
    const Value* chosen = given && given->first ? given->first->find(e.key) : nullptr;
    if (!chosen && given) chosen = given->with.find(e.key);
    Value value = chosen ? substitute(*chosen, given->scope, where) : substitute(e.value, scope, where);
    if (value.is_null()) config::fail(e.origin, path, fmt::format("the parameter '{}' must be given", e.key));
    if (!value.is_scalar()) config::fail(value.origin, where, "expected a number, true, false or a word");
    scope.set(e.key, std::move(value));
  }
}

class GraphReader {
 public:
  GraphReader(const NetworkFile& file, const Value& value)
      : file_(file), value_(value), graph_(file.name, file.input, origin_of(value, "input")) {}

  Graph read() {
    if (!file_.blocks.is_map() && !file_.blocks.is_null())
      config::fail(file_.blocks.origin, "blocks", "expected a map of blocks");
    declare(file_.parameters, globals_, nullptr, "parameters");
    const std::int64_t classes = config::to_integer(substitute(file_.classes, globals_, "classes"), "classes",
                                                    {.min = 1, .max = double{max_classes}});
    for (const Value::Entry& e : file_.blocks.entries) read_definition(e.value, e.key);  // unused ones, too
    const std::size_t last = expand({file_.layers, "", 0}, globals_, "layers");
    return graph_.finish(last, classes, origin_of(value_, "layers"));
  }

 private:
  /// Adds the layers of a list. Returns the node that the last entry stands for.
  std::size_t expand(const LayerList& list, const ParameterScope& scope, const std::string& path) {
    if (!list.entries.is_sequence() || list.entries.items.empty())
      config::fail(list.entries.origin, path, "expected a list of layers");
    std::size_t last = list.input;
    for (std::size_t i = 0; i < list.entries.items.size(); ++i)
      last = expand_entry(list.entries.items[i], fmt::format("{}[{}]", path, i), list, scope, last);
    return last;
  }

  std::size_t expand_entry(const Value& entry, const std::string& path, const LayerList& list,
                           const ParameterScope& scope, std::size_t previous) {
    if (++entries_ > max_entries)
      config::fail(entry.origin, path, fmt::format("blocks expand to more than {} entries", max_entries));
    Value map = entry_map(entry, path);
    std::string& kind = map.entries[0].key;
    if (kind.find('$') != std::string::npos) kind = evaluate(kind, scope, map.entries[0].origin, path);
    if (kind == "block") return expand_block(substitute(map, scope, path), path, list, scope, previous);
    const LayerKind& layer_kind = find_kind(kind, map, path);
    return add_layer(layer_kind, substitute(map, scope, path), path, list, previous);
  }

  std::size_t add_layer(const LayerKind& kind, const Value& map, const std::string& path,
                        const LayerList& list, std::size_t previous) {
    const Value& label = map.entries[0].value;
    if (!label.is_null() && !label.is_scalar() && !label.is_sequence())
      config::fail(label.origin, path, "expected the layer's name, or a list of its inputs");
    const std::string name =
        label.is_scalar() ? names_.named(label, list, path) : names_.numbered(kind.word, list);
    std::unique_ptr<Layer> layer = kind.make();
    LayerEntry entry;
    config::Reader reader(map, name, config::Environment::keep);
    fields(reader, entry, kind.word);
    layer->fields(reader);
    reader.finish();
    if (label.is_sequence()) {
      if (!entry.input.is_null()) config::fail(label.origin, name, "its inputs are given twice");
      entry.input = label;
    }
    const std::vector<std::size_t> inputs = names_.resolve(entry.input, name, list, previous);
    std::size_t node = inputs[0];
    if (!is_skipped(entry.condition, name)) {
      std::optional<std::size_t> weight_of;
      if (layer->weight_of() != "none") weight_of = names_.weight_of(*map.find("weight_of"), name, list);
      node = graph_.add(name, kind.word, std::move(layer), inputs, weight_of, map.origin);
    }
    names_.set(name, node);
    return node;
  }

  std::size_t expand_block(const Value& map, const std::string& path, const LayerList& list,
                           const ParameterScope& scope, std::size_t previous) {
    BlockEntry entry;
    config::read(map, path, entry, config::Environment::keep);
    const std::string block = config::to_string(entry.label, path + ".block", config::Environment::keep);
    const BlockDefinition definition = find_block(block, entry.label.origin, path);
    if (open_blocks_.size() >= max_block_depth)
      config::fail(map.origin, path, "blocks are nested too deeply");
    const std::string name =
        entry.name.is_null() ? names_.numbered(block, list) : names_.named(entry.name, list, path);
    const std::vector<std::size_t> inputs = names_.resolve(entry.input, name, list, previous);
    if (inputs.size() != 1) config::fail(entry.input.origin, name, "a block takes one input");
    const bool is_repeated = !entry.repeat.is_null();
    const std::int64_t repeat =
        is_repeated ? config::to_integer(entry.repeat, name + ".repeat", {.min = 1, .max = max_repeat}) : 1;
    for (const Value* given : {&entry.with, &entry.first}) check_given(definition.parameters, *given, name);

    std::size_t last = inputs[0];
    if (!is_skipped(entry.condition, name)) {
      open_blocks_.push_back(block);
      for (std::int64_t i = 0; i < repeat; ++i) {
        const std::string full = is_repeated ? fmt::format("{}.{}", name, i) : name;
        if (names_.contains(full))
          config::fail(map.origin, name, fmt::format("there is a layer '{}' already", full));
        ParameterScope inner(&globals_);  // not the parameters of the list that the block stands in
        Value channels = Value::plain(fmt::format("{}", graph_.shape(last).back()));
        channels.origin = map.origin;
        inner.set("in_channels", std::move(channels));
        const GivenParameters given{entry.with, i == 0 ? &entry.first : nullptr, scope};
        declare(definition.parameters, inner, &given, full);
        last = expand({definition.layers, full + ".", last}, inner, fmt::format("blocks.{}.layers", block));
        names_.set(full, last);
      }
      open_blocks_.pop_back();
    }
    names_.set(name, last);
    return last;
  }

  BlockDefinition find_block(const std::string& name, const Origin& origin, const std::string& path) const {
    const Value* block = file_.blocks.find(name);
    if (!block) {
      const std::vector<std::string> known = keys_of(file_.blocks);
      config::fail(
          origin, path,
          fmt::format("there is no block '{}'{}; blocks: {}", name, config::did_you_mean(name, known),
                      known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", "))));
    }
    if (std::find(open_blocks_.begin(), open_blocks_.end(), name) != open_blocks_.end())
      config::fail(origin, path, fmt::format("the block '{}' contains itself", name));
    return read_definition(*block, name);
  }

  const NetworkFile& file_;
  const Value& value_;
  GraphBuilder graph_;
  NodeNames names_;
  ParameterScope globals_;
  std::size_t entries_ = 0;
  std::vector<std::string> open_blocks_;  // that are being expanded
};

}  // namespace

bool Graph::is_sequence() const {
  if (input.size() != 1) return input.size() == 2;
  return std::ranges::any_of(nodes, [](const Node& node) {
    return node.layer && node.layer->reads_tokens() && node.inputs[0] == 0;
  });
}

Graph read_graph(const Value& value, std::optional<std::int64_t> frames) {
  NetworkFile file;
  config::read(value, "", file, config::Environment::keep);
  if (file.has_open_frames)
    file.input[0] = frames.value_or(1);
  else if (frames && file.input[0] != *frames)
    config::fail(origin_of(value, "input"), "input",
                 fmt::format("sequences have {} frames, but the network is made for {}; write 'any' to leave "
                             "the number to the run",
                             *frames, file.input[0]));
  Graph graph = GraphReader(file, value).read();
  graph.has_open_frames = file.has_open_frames;
  for (const Node& node : graph.nodes)
    if (graph.is_sequence() && node.layer && node.layer->changes_frames())
      config::fail(node.origin, fmt::format("layer '{}'", node.name),
                   "is for images: it changes the number of frames, and sequences have lengths of their own");
  if (graph.has_open_frames && (!graph.is_sequence() || graph.nodes.back().shape.size() != 2))
    config::fail(origin_of(value, "input"), "input",
                 "'any' is for sequences whose every frame has class scores");
  return graph;
}

}  // namespace lpsgd
