#include "trainer/config_reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <sstream>
#include <vector>

#include "core/config_shape.h"
#include "core/error.h"
#include "trainer/run_config.h"

namespace lpsgd {

namespace {

using config::Field;
using config::Shape;

/// A map of declared keys. `title` says which of several maps it is ("kind: qsgd").
struct Keys {
  std::string title;
  std::span<const Field> fields;
};

struct Match {
  std::string title;
  const Field* field;
};

const std::vector<Field>& all_fields() {
  static const std::vector<Field> fields = [] {
    RunConfig run;
    config::Describer describer;
    lpsgd::fields(describer, run);
    return describer.fields();
  }();
  return fields;
}

/// The maps that a value of this shape may be or hold.
void collect_keys(const Shape& shape, const std::string& title, std::vector<Keys>& out) {
  if (shape.kind == Shape::Kind::map)
    out.push_back({shape.title.empty() ? title : shape.title, shape.fields});
  if (shape.kind == Shape::Kind::choice || shape.kind == Shape::Kind::list)
    for (const Shape& item : shape.items) collect_keys(item, title, out);
}

std::vector<Keys> keys_of(const Field& field, const std::string& title = "") {
  std::vector<Keys> out;
  collect_keys(field.shape, title, out);
  return out;
}

bool is_list(const Field& field) {
  return field.shape.kind == Shape::Kind::list;
}

/// Every key with its sections, "exchange.codec.bits".
void collect_paths(std::span<const Field> fields, const std::string& prefix, std::vector<std::string>& out) {
  for (const Field& f : fields) {
    const std::string path = prefix + f.key;
    if (std::find(out.begin(), out.end(), path) == out.end()) out.push_back(path);
    for (const Keys& keys : keys_of(f)) collect_paths(keys.fields, path + ".", out);
  }
}

std::string last_word(const std::string& path) {
  return path.substr(path.rfind('.') + 1);
}

/// The fields that a dotted key names: several where codecs of different kinds have a key of that name.
std::vector<Match> find(const std::string& key) {
  std::vector<Keys> level{{"", all_fields()}};
  std::vector<Match> matches;
  std::istringstream words(key);
  for (std::string word; std::getline(words, word, '.');) {
    word = word.substr(0, word.find('['));  // rules[0] is rules
    matches.clear();
    for (const Keys& keys : level)
      for (const Field& f : keys.fields)
        if (f.key == word) matches.push_back({keys.title, &f});
    level.clear();
    for (const Match& m : matches)
      for (const Keys& keys : keys_of(*m.field, m.title)) level.push_back(keys);
  }
  return matches;
}

std::string suggestion(const std::string& key, std::span<const std::string> other_words) {
  std::vector<std::string> paths(other_words.begin(), other_words.end());
  collect_paths(all_fields(), "", paths);
  if (const auto near = config::nearest(key, paths)) return *near;
  std::vector<std::string> words;
  for (const std::string& path : paths) words.push_back(last_word(path));
  const auto near = config::nearest(last_word(key), words);
  if (!near) return "";
  return paths[static_cast<std::size_t>(std::find(words.begin(), words.end(), *near) - words.begin())];
}

std::string values_text(const Field& field) {
  if (field.shape.kind == Shape::Kind::map) return "";
  const std::string fallback = field.fallback_text();
  return fmt::format("{}; {}{}", field.type, field.is_required ? "" : "default: ", fallback);
}

/// Wraps at 110 characters. All lines but the first get `indent` spaces; the first already starts there.
std::string wrapped(const std::string& text, std::size_t indent) {
  std::string out;
  std::size_t column = indent;
  std::istringstream words(text);
  for (std::string word; words >> word; column += word.size() + 1) {
    if (column > indent && column + word.size() > 110) {
      out.back() = '\n';
      out += std::string(indent, ' ');
      column = indent;
    }
    out += word + " ";
  }
  if (!out.empty()) out.back() = '\n';
  return out;
}

std::string indented_list(const Keys& keys) {
  constexpr std::size_t indent = 19;
  std::string out;
  for (const Field& f : keys.fields) {
    out += fmt::format("  {:<{}}{}", f.key, indent - 2, wrapped(f.help, indent));
    if (const std::string values = values_text(f); !values.empty())
      out += std::string(indent, ' ') + wrapped(values, indent);
  }
  return out;
}

bool same(const Match& a, const Match& b) {
  return a.field->help == b.field->help && values_text(*a.field) == values_text(*b.field);
}

void append_rows(std::span<const Field> fields, const std::string& prefix, std::vector<Field>& rows) {
  for (const Field& f : fields) {
    rows.push_back(f);
    rows.back().key = prefix + f.key;
    for (const Keys& keys : keys_of(f))
      if (keys.title.empty()) append_rows(keys.fields, prefix + f.key + (is_list(f) ? "[]." : "."), rows);
  }
}

/// The keys that depend on another one, also further inside: a table for each value of it.
std::string titled_tables(const Field& f, const std::string& path) {
  std::string out;
  for (const Keys& keys : keys_of(f)) {
    if (keys.title.empty()) {
      for (const Field& inner : keys.fields)  // one with a name is described where it is used first
        if (inner.shape.name.empty())
          out += titled_tables(inner, path + (is_list(f) ? "[]." : ".") + inner.key);
      continue;
    }
    out += fmt::format("\n### `{}` with `{}`\n\n", path, keys.title);
    const auto others = keys.fields.subspan(1);  // the first is in the title
    out += others.empty() ? "No other keys.\n" : config::markdown_table(others, path + ".");
  }
  return out;
}

}  // namespace

std::string config_reference_markdown() {
  std::string out = "## The file\n\n| key | meaning |\n|---|---|\n";
  for (const Field& f : all_fields()) {
    const bool is_section = f.shape.kind == Shape::Kind::map;
    out += is_section ? fmt::format("| [`{0}`](#{0}) | {1} |\n", f.key, f.help)
                      : fmt::format("| `{}` | {}: {}; {} |\n", f.key, f.help, f.type, f.fallback_text());
  }
  for (const Field& section : all_fields()) {
    if (section.shape.kind != Shape::Kind::map) continue;
    std::vector<Field> rows;
    append_rows(section.shape.fields, section.key + ".", rows);
    std::string title = section.help;
    title[0] = static_cast<char>(std::toupper(title[0]));
    out += fmt::format("\n## `{}`\n\n{}.\n\n{}", section.key, title, config::markdown_table(rows));
    for (const Field& f : section.shape.fields) out += titled_tables(f, section.key + "." + f.key);
  }
  return out;
}

std::string config_json_schema() {
  return config::json_schema(all_fields(), "A configuration of lpsgd");
}

std::string config_sections() {
  return indented_list({"", all_fields()});
}

std::vector<std::string> homes_of_key(const std::string& name) {
  std::vector<std::string> paths, homes;
  collect_paths(all_fields(), "", paths);
  for (const std::string& path : paths)
    if (path.size() > name.size() + 1 && path.ends_with("." + name))
      homes.push_back(path.substr(0, path.size() - name.size() - 1));
  return homes;
}

bool is_config_key(const std::string& key) {
  return !find(key).empty();
}

std::string config_help(const std::string& key, std::span<const std::string> other_words) {
  const std::vector<Match> matches = find(key);
  if (matches.empty()) {
    const std::string near = suggestion(key, other_words);
    throw ConfigError(fmt::format("help: no key or command '{}'{}; 'lpsgd help' lists them", key,
                                  near.empty() ? "" : fmt::format(", did you mean '{}'?", near)));
  }
  std::string out;
  const bool alike =
      std::all_of(matches.begin(), matches.end(), [&](const Match& m) { return same(m, matches.front()); });
  for (const Match& m : std::span(matches).first(alike ? 1 : matches.size())) {
    const std::string when = alike || m.title.empty() ? "" : fmt::format(" ({})", m.title);
    out += fmt::format("{}{}: {}\n", key, when, m.field->help);
    if (const std::string values = values_text(*m.field); !values.empty()) out += "  " + values + "\n";
  }
  for (const Keys& keys : keys_of(*matches.front().field))
    out += fmt::format("\n{}{}", keys.title.empty() ? "" : fmt::format("with {}\n", keys.title),
                       indented_list(keys));
  return out;
}

}  // namespace lpsgd
