// The tree of values: access, overrides, environment variables, and suggestions for misspelt words.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include "core/config.h"
#include "core/error.h"
#include "core/printable.h"

namespace lpsgd::config {

std::string Origin::text() const {
  return line > 0 ? fmt::format("{}:{}:{}", source, line, column) : source;
}

const Value* Value::find(std::string_view key) const {
  for (const Entry& e : entries)
    if (e.key == key) return &e.value;
  return nullptr;
}

Value* Value::find(std::string_view key) {
  return const_cast<Value*>(std::as_const(*this).find(key));
}

void Value::set(std::string_view key, Value value) {
  if (is_null()) kind = Kind::map;
  if (Value* old = find(key)) {
    *old = std::move(value);
    return;
  }
  Origin at = value.origin;
  entries.push_back({std::string(key), std::move(at), std::move(value)});
}

Value Value::string(std::string text) {
  Value v = plain(std::move(text));
  v.quoted = true;
  return v;
}

Value Value::plain(std::string text) {
  Value v;
  v.kind = Kind::scalar;
  v.scalar = std::move(text);
  return v;
}

Value Value::map() {
  Value v;
  v.kind = Kind::map;
  return v;
}

Value Value::sequence() {
  Value v;
  v.kind = Kind::sequence;
  return v;
}

void fail(const Origin& origin, std::string_view path, std::string_view message) {
  std::string text = origin.text();
  if (!path.empty()) text += fmt::format(": {}", path);
  throw ConfigError(printable(fmt::format("{}: {}", text, message)));
}

void check_key_size(std::string_view key, const Origin& at) {
  if (key.size() > max_key_bytes) fail(at, "", fmt::format("a key of more than {} bytes", max_key_bytes));
}

namespace {

struct Extent {
  int depth = 0;  // below the root
  std::size_t nodes = 1;
};

Extent extent_of(const Value& v) {
  Extent out;
  const auto add = [&](const Value& child) {
    const Extent of_child = extent_of(child);
    out.depth = std::max(out.depth, of_child.depth + 1);
    out.nodes += of_child.nodes;
  };
  for (const Value& item : v.items) add(item);
  for (const Value::Entry& entry : v.entries) add(entry.value);
  return out;
}

/// A tree with `value` at `path` keeps to the limits of a file.
void check_fits(const Value& root, const std::string& path, const Value& value, const Origin& at) {
  std::size_t words = 0;
  for (std::size_t begin = 0; begin <= path.size(); ++words) {
    const std::size_t dot = std::min(path.find('.', begin), path.size());
    check_key_size(std::string_view(path).substr(begin, dot - begin), at);
    begin = dot + 1;
  }
  const Extent added = extent_of(value);
  if (words + static_cast<std::size_t>(added.depth) > max_depth)
    fail(at, "", fmt::format("nested deeper than {} levels", max_depth));
  if (extent_of(root).nodes + words + added.nodes > max_nodes)
    fail(at, "", fmt::format("more than {} values", max_nodes));
}

}  // namespace

void apply_override(Value& root, const std::string& assignment) {
  const std::string source = "--set " + assignment;
  const Origin at{source, 0, 0};
  const std::size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0)
    fail(at, "", "expected key=value, with a dotted key such as train.seed=2");
  const std::string path = assignment.substr(0, equals);
  if (const std::size_t bad = plain_text_prefix(path); bad < path.size()) fail(at, "", not_plain(path[bad]));
  const std::string text = assignment.substr(equals + 1);
  Value value = [&] {
    try {
      return parse_option(text, source);
    } catch (const ConfigError& e) {
      // The shell has cut {kind: onebit} into words.
      const bool cut =
          (text.starts_with('{') && !text.ends_with('}')) || (text.starts_with('[') && !text.ends_with(']'));
      throw ConfigError(e.what() +
                        std::string(cut ? "; values with spaces need quotes: --set 'key={a: b}'" : ""));
    }
  }();
  value.origin = at;
  check_fits(root, path, value, at);

  Value* node = &root;
  std::size_t begin = 0;
  while (true) {
    const std::size_t dot = std::min(path.find('.', begin), path.size());
    const std::string word = path.substr(begin, dot - begin);
    if (word.empty()) fail(at, "", fmt::format("'{}' has an empty part", path));
    const bool last = dot == path.size();
    if (node->is_sequence()) {
      const bool digits = word.find_first_not_of("0123456789") == std::string::npos;
      if (!digits || word.size() > 9 || std::stoul(word) >= node->items.size())
        fail(at, path.substr(0, begin ? begin - 1 : 0),
             fmt::format("is a list of {}; '{}' is no position in it", node->items.size(), word));
      node = &node->items[std::stoul(word)];
    } else {
      if (node->is_scalar() && node->scalar == "none")
        *node = Value::map();  // `augment: none`, `codec: none`
      if (node->is_scalar()) {
        fail(at, path.substr(0, begin ? begin - 1 : 0),
             fmt::format("is '{}', not a map; it has no key '{}'", node->scalar, word));
      }
      if (!node->find(word)) {
        Value empty;
        empty.origin = at;
        node->set(word, std::move(empty));
      }
      node = node->find(word);
    }
    if (last) break;
    begin = dot + 1;
  }
  *node = std::move(value);
}

bool names_environment(const Value& v) {
  return v.is_scalar() && v.quoted && v.scalar.find("${") != std::string::npos;
}

std::string expand_environment(const Value& v, std::string_view path) {
  if (!v.quoted) {
    if (v.scalar.find("${") == std::string::npos) return v.scalar;
    fail(v.origin, path, fmt::format("an environment variable needs quotes: \"{}\"", v.scalar));
  }
  std::string out;
  std::size_t i = 0;
  while (i < v.scalar.size()) {
    if (v.scalar.compare(i, 2, "${") != 0) {
      out += v.scalar[i++];
      continue;
    }
    const std::size_t end = v.scalar.find('}', i);
    if (end == std::string::npos) fail(v.origin, path, "'${' without '}'");
    const std::string name = v.scalar.substr(i + 2, end - i - 2);
    const char* text = std::getenv(name.c_str());
    if (!text) fail(v.origin, path, fmt::format("environment variable {} is not set", name));
    const std::string_view held = text;
    if (const std::size_t bad = plain_text_prefix(held); bad < held.size())
      fail(v.origin, path, fmt::format("environment variable {}: {}", name, not_plain(held[bad])));
    out += held;
    i = end + 1;
  }
  return out;
}

std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates) {
  // Edit distance that counts a swap of two adjacent letters as one error (optimal string alignment).
  const auto distance = [](std::string_view a, std::string_view b) {
    std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
    for (std::size_t i = 0; i <= a.size(); ++i) {
      for (std::size_t j = 0; j <= b.size(); ++j) {
        if (i == 0 || j == 0) {
          d[i][j] = i + j;
          continue;
        }
        d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
        if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
          d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
    return d[a.size()][b.size()];
  };
  std::optional<std::string> best;
  std::size_t best_distance = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t d = distance(word, candidate);
    if (d < best_distance) {
      best_distance = d;
      best = candidate;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, std::span<const std::string> candidates) {
  const auto near = nearest(word, candidates);
  return near ? fmt::format(", did you mean '{}'?", *near) : "";
}

}  // namespace lpsgd::config
