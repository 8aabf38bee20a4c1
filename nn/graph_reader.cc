// Reads a network file's tree into a graph: expands blocks, evaluates expressions, infers shapes
// (docs/networks.md describes the language).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "core/config_shape.h"
#include "core/error.h"
#include "nn/expression.h"
#include "nn/graph.h"

namespace lpsgd {

namespace {

using config::Origin;
using config::Value;

constexpr std::size_t max_layers = 20'000;
constexpr std::size_t max_entries = 200'000;  // read, switched-off ones counted
constexpr std::int64_t max_repeat = 10'000;
constexpr std::size_t max_block_depth = 32;
constexpr std::int64_t max_parameters = std::int64_t{1} << 36;
constexpr std::int64_t arena_step = 16;  // floats: every tensor starts on 64 bytes
constexpr const char* input_word = "in";

struct FileOptions {
  std::string name = "network";
  std::vector<std::int64_t> input;
  std::int64_t classes = 0;
  Value parameters, blocks, layers;
};

void fields(config::Visitor& v, FileOptions& o) {
  const auto keep = [](Value& into) {
    return [&into](const Value& value, const std::string&) { into = value; };
  };
  const auto nothing = [] { return Value(); };
  v.field("name", o.name, "what `show` and the run's folder call it");
  v.required();
  v.field("input", o.input, "shape of one sample: [H, W, C], [frames, features] or [features]",
          {.min = 1, .max = 1 << 20});
  v.required();
  v.field("classes", o.classes, "the last layer's features; the loss is softmax cross-entropy over them",
          {.min = 1, .max = 1 << 24});
  v.custom("parameters", "map of values", "names for use in expressions as `$name`", keep(o.parameters),
           nothing);
  v.custom("blocks", "map of blocks", "named lists of layers, with parameters of their own", keep(o.blocks),
           nothing);
  v.required();
  v.custom("layers", "list of layers", "the network, from input to class scores", keep(o.layers), nothing);
}

/// What every entry of a list of layers may say beside its layer's options.
struct EntryOptions {
  Value label, input, condition;    // every entry
  Value name, repeat, with, first;  // blocks
};

void entry_fields(config::Visitor& v, const char* kind, EntryOptions& o, bool block) {
  const auto keep = [](Value& into) {
    return [&into](const Value& value, const std::string&) { into = value; };
  };
  const auto nothing = [] { return Value(); };
  const auto custom = [&](const char* key, const char* type, const char* help, Value& into) {
    v.custom(key, type, help, keep(into), nothing);
  };
  if (block) {
    custom(kind, "word", "which block", o.label);
    custom("name", "word", "prefix of its layers' names; the block's own name by default", o.name);
    custom("repeat", "integer", "that many times in a row, named name.0, name.1, ...", o.repeat);
    custom("with", "map of values", "the block's parameters", o.with);
    custom("first", "map of values", "parameters of the first repetition only", o.first);
  } else {
    custom(kind, "word, or list of inputs", "the layer's name; the kind by default", o.label);
  }
  custom("input", "name or list of names", "what it reads; the layer before it by default", o.input);
  custom("if", "true or false", "false: the entry only hands its input on, under its name", o.condition);
}

bool valid_name(const std::string& name) {
  if (name.empty() || name.size() > 200 || name.front() == '.' || name.back() == '.') return false;
  return name.find("..") == std::string::npos && std::all_of(name.begin(), name.end(), [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
         });
}

class GraphReader {
 public:
  Graph run(const Value& value) {
    FileOptions options;
    config::read(value, "", options, config::Environment::keep);
    const Origin at = origin_of(value, "input");
    if (options.input.empty() || options.input.size() > 3)
      config::fail(at, "input",
                   fmt::format("expected [H, W, C], [frames, features] or [features], got {} numbers",
                               options.input.size()));
    if (!elements_of(options.input)) config::fail(at, "input", "is too large");
    graph_.name = options.name;
    graph_.input = options.input;
    graph_.classes = options.classes;
    blocks_ = options.blocks;
    if (!blocks_.is_map() && !blocks_.is_null())
      config::fail(blocks_.origin, "blocks", "expected a map of blocks");

    Node input;
    input.name = input_word;
    input.shape = options.input;
    input.origin = at;
    graph_.nodes.push_back(std::move(input));
    names_[input_word] = 0;

    ParameterScope scope;
    declare(options.parameters, scope, scope, nullptr, nullptr, "parameters");
    globals_ = &scope;
    for (const Value::Entry& e : blocks_.entries) read_block(e.value, e.key);  // also those that nothing uses
    const std::size_t last = expand(options.layers, "layers", "", 0, scope);
    finish(last, value);
    return std::move(graph_);
  }

 private:
  static Origin origin_of(const Value& value, const char* key) {
    const Value* v = value.find(key);
    return v ? v->origin : value.origin;
  }

  /// That a block has the parameters that it is given.
  static void check_given(const Value& defaults, const Value& given, const std::string& path) {
    std::vector<std::string> known;
    for (const Value::Entry& e : defaults.entries) known.push_back(e.key);
    if (!given.is_map() && !given.is_null()) config::fail(given.origin, path, "expected a map of parameters");
    for (const Value::Entry& e : given.entries)
      if (std::find(known.begin(), known.end(), e.key) == known.end())
        config::fail(e.origin, path,
                     fmt::format("the block has no parameter '{}'{}; it has: {}", e.key,
                                 config::did_you_mean(e.key, known), fmt::join(known, ", ")));
  }

  struct Block {
    Value parameters, layers;
  };
  static Block read_block(const Value& block, const std::string& name) {
    Block out;
    config::Reader reader(block, "blocks." + name, config::Environment::keep);
    reader.custom("parameters", "", "", [&](const Value& v, const std::string&) { out.parameters = v; }, {});
    reader.required();
    reader.custom("layers", "", "", [&](const Value& v, const std::string&) { out.layers = v; }, {});
    reader.finish();
    return out;
  }

  /// Sets the parameters of `defaults` in `scope`: `first` before `with` before the default. Values given by
  /// the caller are already evaluated; defaults may speak of parameters declared before them.
  void declare(const Value& defaults, ParameterScope& scope, const ParameterScope& outer, const Value* with,
               const Value* first, const std::string& path) {
    if (!defaults.is_map() && !defaults.is_null()) config::fail(defaults.origin, path, "expected a map");
    for (const Value::Entry& e : defaults.entries) {
      const std::string where = path + "." + e.key;
      if (!valid_name(e.key) || e.key.find_first_of(".-") != std::string::npos)
        config::fail(e.origin, path, fmt::format("'{}' is not a parameter's name", e.key));
      const Value* given = first ? first->find(e.key) : nullptr;
      if (!given && with) given = with->find(e.key);
      Value value = given ? substitute(*given, outer, where) : substitute(e.value, scope, where);
      if (value.is_null())
        config::fail(e.origin, path, fmt::format("the parameter '{}' must be given", e.key));
      if (!value.is_scalar()) config::fail(value.origin, where, "expected a number, true, false or a word");
      scope.set(e.key, std::move(value));
    }
  }

  /// Appends the layers of `list`; returns the node that the last one stands for.
  std::size_t expand(const Value& list, const std::string& path, const std::string& prefix, std::size_t input,
                     const ParameterScope& scope) {
    if (!list.is_sequence() || list.items.empty())
      config::fail(list.origin, path, "expected a list of layers");
    std::size_t last = input;
    for (std::size_t i = 0; i < list.items.size(); ++i)
      last = expand_entry(list.items[i], fmt::format("{}[{}]", path, i), prefix, input, last, scope, list);
    return last;
  }

  std::size_t expand_entry(const Value& entry, const std::string& path, const std::string& prefix,
                           std::size_t block_input, std::size_t previous, const ParameterScope& scope,
                           const Value& list) {
    if (++entries_ > max_entries)
      config::fail(entry.origin, path, fmt::format("blocks expand to more than {} entries", max_entries));
    // "- relu" is short for "- {relu: }", whose first key is its kind.
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
    std::string kind = map.entries[0].key;
    if (kind.find('$') != std::string::npos) kind = evaluate(kind, scope, map.entries[0].origin, path);
    map.entries[0].key = kind;

    const bool is_block = kind == "block";
    const LayerKind* layer_kind = is_block ? nullptr : find_kind(kind, map, path);
    map = substitute(map, scope, path);
    EntryOptions options;

    if (is_block) {
      config::Reader reader(map, path, config::Environment::keep);
      entry_fields(reader, "block", options, true);
      reader.finish();
      return expand_block(map, options, path, prefix, block_input, previous, scope, list);
    }

    const Value label = map.entries[0].value;
    if (!label.is_null() && !label.is_scalar() && !label.is_sequence())
      config::fail(label.origin, path, "expected the layer's name, or a list of its inputs");
    const std::string name =
        label.is_scalar() ? checked_name(label, prefix, path) : automatic_name(prefix, kind);
    std::unique_ptr<Layer> layer = layer_kind->make();
    config::Reader reader(map, name, config::Environment::keep);
    entry_fields(reader, layer_kind->word, options, false);
    layer->fields(reader);
    reader.finish();
    if (label.is_sequence()) {
      if (!options.input.is_null()) config::fail(label.origin, name, "its inputs are given twice");
      options.input = label;
    }

    const std::vector<std::size_t> inputs = resolve(options.input, name, prefix, block_input, previous, list);
    if (skipped(options, name)) return names_[name] = inputs[0];
    if (graph_.nodes.size() > max_layers)
      config::fail(map.origin, name, fmt::format("the network has more than {} layers", max_layers));
    return add_node(name, layer_kind->word, std::move(layer), inputs, map.origin);
  }

  static bool skipped(const EntryOptions& options, const std::string& name) {
    return !options.condition.is_null() && !config::to_bool(options.condition, name + ".if");
  }

  const LayerKind* find_kind(const std::string& word, const Value& map, const std::string& path) const {
    std::vector<std::string> known{"block"};
    for (const LayerKind& kind : layer_kinds()) {
      if (word == kind.word) return &kind;
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

  std::size_t expand_block(const Value& map, const EntryOptions& options, const std::string& path,
                           const std::string& prefix, std::size_t block_input, std::size_t previous,
                           const ParameterScope& scope, const Value& list) {
    const std::string block_name =
        config::to_string(options.label, path + ".block", config::Environment::keep);
    const Value* block = blocks_.find(block_name);
    if (!block) {
      std::vector<std::string> known;
      for (const Value::Entry& e : blocks_.entries) known.push_back(e.key);
      config::fail(options.label.origin, path,
                   fmt::format("there is no block '{}'{}; blocks: {}", block_name,
                               config::did_you_mean(block_name, known),
                               known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", "))));
    }
    if (std::find(open_blocks_.begin(), open_blocks_.end(), block_name) != open_blocks_.end())
      config::fail(options.label.origin, path, fmt::format("the block '{}' contains itself", block_name));
    if (open_blocks_.size() >= max_block_depth)
      config::fail(map.origin, path, "blocks are nested too deeply");
    const std::string name = options.name.is_null() ? automatic_name(prefix, block_name)
                                                    : checked_name(options.name, prefix, path);
    const std::vector<std::size_t> inputs = resolve(options.input, name, prefix, block_input, previous, list);
    if (inputs.size() != 1) config::fail(options.input.origin, name, "a block takes one input");
    const bool repeated = !options.repeat.is_null();
    const std::int64_t repeat =
        repeated ? config::to_integer(options.repeat, name + ".repeat", {.min = 1, .max = max_repeat}) : 1;
    const auto [parameters, layers] = read_block(*block, block_name);
    for (const Value* given : {&options.with, &options.first}) check_given(parameters, *given, name);
    if (skipped(options, name)) return names_[name] = inputs[0];

    open_blocks_.push_back(block_name);
    std::size_t last = inputs[0];
    for (std::int64_t i = 0; i < repeat; ++i) {
      const std::string full = repeated ? fmt::format("{}.{}", name, i) : name;
      ParameterScope inner(globals_);  // a block sees its own parameters and the network's, not its caller's
      Value channels = Value::plain(fmt::format("{}", graph_.nodes[last].shape.back()));
      channels.origin = map.origin;
      inner.set("in_channels", std::move(channels));
      declare(parameters, inner, scope, &options.with, i == 0 ? &options.first : nullptr, full);
      last = expand(layers, fmt::format("blocks.{}.layers", block_name), full + ".", last, inner);
      names_[full] = last;
    }
    open_blocks_.pop_back();
    return names_[name] = last;
  }

  std::string checked_name(const Value& label, const std::string& prefix, const std::string& path) const {
    const std::string word = config::to_string(label, path, config::Environment::keep);
    if (!valid_name(word) || word == input_word)
      config::fail(label.origin, path, fmt::format("'{}' is not a name for a layer", word));
    std::string full = prefix + word;
    if (names_.contains(full))
      config::fail(label.origin, path, fmt::format("there are two layers '{}'", full));
    return full;
  }

  std::string automatic_name(const std::string& prefix, const std::string& kind) {
    std::string name = prefix + kind;
    int& count = automatic_[name];
    do {
      if (count++ > 0) name = fmt::format("{}{}_{}", prefix, kind, count);
    } while (names_.contains(name));
    return name;
  }

  std::vector<std::size_t> resolve(const Value& input, const std::string& layer, const std::string& prefix,
                                   std::size_t block_input, std::size_t previous, const Value& list) const {
    if (input.is_null()) return {previous};
    std::vector<std::size_t> out;
    const auto one = [&](const Value& v) {
      const std::string word = config::to_string(v, layer + ".input", config::Environment::keep);
      if (word == input_word) {
        out.push_back(block_input);
        return;
      }
      const auto it = names_.find(prefix + word);
      if (it != names_.end()) {
        out.push_back(it->second);
        return;
      }
      if (prefix + word == layer) config::fail(v.origin, layer + ".input", "a layer cannot read itself");
      if (comes_later(word, list))
        config::fail(v.origin, layer + ".input",
                     fmt::format("'{}' comes later; a layer reads what is defined before it", word));
      std::vector<std::string> known{input_word};
      for (const auto& entry : names_)
        if (entry.first.starts_with(prefix)) known.push_back(entry.first.substr(prefix.size()));
      config::fail(v.origin, layer + ".input",
                   fmt::format("there is no layer '{}' here{}", word, config::did_you_mean(word, known)));
    };
    if (input.is_sequence()) {
      if (input.items.empty()) config::fail(input.origin, layer + ".input", "the list is empty");
      for (const Value& v : input.items) one(v);
    } else {
      one(input);
    }
    return out;
  }

  static bool comes_later(const std::string& word, const Value& list) {
    return std::any_of(list.items.begin(), list.items.end(), [&](const Value& entry) {
      if (!entry.is_map() || entry.entries.empty()) return false;
      const Value* name = entry.find("name");
      return entry.entries[0].value.scalar == word || (name && name->scalar == word);
    });
  }

  std::size_t add_node(const std::string& name, const char* kind, std::unique_ptr<Layer> layer,
                       const std::vector<std::size_t>& inputs, const Origin& origin) {
    const auto misfit = [&](const std::string& what) {
      config::fail(origin, fmt::format("layer '{}'", name), what);
    };
    Node node;
    node.name = name;
    node.kind = kind;
    node.origin = origin;
    node.inputs = inputs;
    std::vector<Shape> shapes;
    for (const std::size_t i : inputs) shapes.push_back(graph_.nodes[i].shape);
    try {
      node.shape = layer->infer(shapes);
    } catch (const Misfit& e) {
      misfit(e.what());
    }
    if (!elements_of(node.shape)) misfit(fmt::format("its output {} is too large", shape_text(node.shape)));
    for (const ParameterSpec& p : layer->parameters()) {
      const auto elements = elements_of(p.shape);
      if (!elements) misfit(fmt::format("its {} {} is too large", p.suffix, shape_text(p.shape)));
      node.tensors.push_back(graph_.tensors.size());
      graph_.tensors.push_back({name + "." + p.suffix, p.kind, p.shape, *elements, graph_.arena});
      graph_.inits.push_back(p.init);
      graph_.parameters += *elements;
      graph_.arena += (*elements + arena_step - 1) / arena_step * arena_step;
      if (graph_.parameters > max_parameters) misfit("the network has too many parameters");
    }
    for (const BufferSpec& b : layer->buffers()) {
      node.buffers.push_back(graph_.buffers.size());
      graph_.buffers.push_back({name + "." + b.suffix, b.shape, b.initial});
    }
    node.layer = std::move(layer);
    graph_.nodes.push_back(std::move(node));
    return names_[name] = graph_.nodes.size() - 1;
  }

  /// The last layer gives the class scores, and every other one is read by someone.
  void finish(std::size_t last, const Value& value) const {
    const Node& end = graph_.nodes[last];
    if (last == 0) config::fail(origin_of(value, "layers"), "layers", "the network has no layer");
    if (end.shape.size() > 2 || end.shape.back() != graph_.classes)
      config::fail(end.origin, fmt::format("layer '{}'", end.name),
                   fmt::format("the last layer gives {}, but the network has {} classes",
                               shape_text(end.shape), graph_.classes));
    std::vector<bool> read(graph_.nodes.size(), false);
    read[last] = true;
    for (const Node& node : graph_.nodes)
      for (const std::size_t i : node.inputs) read[i] = true;
    for (std::size_t i = 0; i < read.size(); ++i)
      if (!read[i])
        config::fail(graph_.nodes[i].origin, fmt::format("layer '{}'", graph_.nodes[i].name),
                     "nothing reads its output");
  }

  Graph graph_;
  Value blocks_;
  std::map<std::string, std::size_t> names_;  // full names of layers and blocks, and the node each stands for
  std::map<std::string, int> automatic_;
  std::size_t entries_ = 0;
  std::vector<std::string> open_blocks_;
  const ParameterScope* globals_ = nullptr;
};

}  // namespace

Graph read_graph(const Value& value) {
  return GraphReader().run(value);
}

std::string network_reference() {
  std::string out = "### The file\n\n";
  config::Describer file;
  FileOptions options;
  fields(file, options);
  out += config::markdown_table(file.fields());
  out += "\n### `block`\n\n";
  config::Describer block;
  EntryOptions entry;
  entry_fields(block, "block", entry, true);
  out += config::markdown_table(block.fields());
  for (const LayerKind& kind : layer_kinds()) {
    config::Describer keys;
    entry_fields(keys, kind.word, entry, false);
    kind.make()->fields(keys);
    out += fmt::format("\n### `{}`\n\n{}\n\n{}", kind.word, kind.help, config::markdown_table(keys.fields()));
  }
  return out;
}

}  // namespace lpsgd
