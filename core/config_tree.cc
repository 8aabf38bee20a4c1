// The tree: parsing with yaml-cpp, overrides, environment variables, emission.
#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <sstream>

#include "core/config.h"
#include "core/error.h"
#include "core/file.h"

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
  throw ConfigError(fmt::format("{}: {}", text, message));
}

namespace {

constexpr int max_depth = 64;
constexpr std::size_t max_nodes = 100'000;  // aliases may not blow a small file up without bound

struct Converter {
  const std::string& source;
  bool is_option;  // marks inside a command-line option mean nothing to its user
  std::size_t nodes = 0;

  Origin origin(const YAML::Mark& mark) const {
    if (is_option) return {source, 0, 0};
    return {source, mark.line + 1, mark.column + 1};
  }

  Value convert(const YAML::Node& node, int depth) {
    Value v;
    v.origin = origin(node.Mark());
    if (depth > max_depth) fail(v.origin, "", fmt::format("nested deeper than {} levels", max_depth));
    if (++nodes > max_nodes) fail(v.origin, "", fmt::format("more than {} values", max_nodes));
    switch (node.Type()) {
      case YAML::NodeType::Undefined:
      case YAML::NodeType::Null:
        break;
      case YAML::NodeType::Scalar:
        v.kind = Value::Kind::scalar;
        v.scalar = node.Scalar();
        v.quoted = node.Tag() == "!";
        if (!v.quoted && (v.scalar == "~" || v.scalar == "null")) {
          v.kind = Value::Kind::null;
          v.scalar.clear();
        }
        break;
      case YAML::NodeType::Sequence:
        v.kind = Value::Kind::sequence;
        for (const auto& item : node) v.items.push_back(convert(item, depth + 1));
        break;
      case YAML::NodeType::Map:
        v.kind = Value::Kind::map;
        for (const auto& entry : node) {
          const Origin at = origin(entry.first.Mark());
          if (!entry.first.IsScalar()) fail(at, "", "a key must be a plain word");
          const std::string& key = entry.first.Scalar();
          if (v.find(key)) fail(at, "", fmt::format("duplicate key '{}'", key));
          v.entries.push_back({key, at, convert(entry.second, depth + 1)});
        }
        break;
    }
    return v;
  }
};

/// The first byte that is no UTF-8, if any.
std::optional<std::size_t> not_utf8(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
    const unsigned char lead = byte(i);
    const std::size_t more = lead < 0x80                   ? 0
                             : lead >= 0xc2 && lead < 0xe0 ? 1
                             : lead >= 0xe0 && lead < 0xf0 ? 2
                             : lead >= 0xf0 && lead < 0xf5 ? 3
                                                           : text.size();
    if (more >= text.size() - i) return i;
    for (std::size_t k = 1; k <= more; ++k)
      if ((byte(i + k) & 0xc0) != 0x80) return i;
    // No overlong forms, surrogates, or numbers beyond Unicode's last.
    if ((lead == 0xe0 && byte(i + 1) < 0xa0) || (lead == 0xed && byte(i + 1) >= 0xa0) ||
        (lead == 0xf0 && byte(i + 1) < 0x90) || (lead == 0xf4 && byte(i + 1) >= 0x90))
      return i;
    i += more + 1;
  }
  return std::nullopt;
}

/// Notes where a document's first node stands.
class FirstNode final : public YAML::EventHandler {
 public:
  std::optional<YAML::Mark> mark;

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& at, YAML::anchor_t) override { see(at); }
  void OnAlias(const YAML::Mark& at, YAML::anchor_t) override { see(at); }
  void OnScalar(const YAML::Mark& at, const std::string&, YAML::anchor_t, const std::string&) override {
    see(at);
  }
  void OnSequenceStart(const YAML::Mark& at, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    see(at);
  }
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& at, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    see(at);
  }
  void OnMapEnd() override {}

 private:
  void see(const YAML::Mark& at) {
    if (!mark) mark = at;
  }
};

/// The second document's first node, if there is a second one. (YAML::LoadAll takes a token that begins no
/// node, such as a lone ',', for an endless row of empty documents.)
std::optional<YAML::Mark> second_document(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  FirstNode first, second;
  if (!parser.HandleNextDocument(first) || !parser.HandleNextDocument(second)) return std::nullopt;
  return second.mark.value_or(YAML::Mark());
}

Value parse(const std::string& text, const std::string& source, bool is_option) {
  if (const auto bad = not_utf8(text)) {
    const std::size_t line_start = text.rfind('\n', *bad) + 1;  // 0 on the first line
    const auto line = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(*bad), '\n') + 1;
    fail(is_option ? Origin{source, 0, 0}
                   : Origin{source, static_cast<int>(line), static_cast<int>(*bad - line_start) + 1},
         "", fmt::format("byte 0x{:02x} is not UTF-8 text", static_cast<unsigned char>(text[*bad])));
  }
  try {
    Converter converter{source, is_option};
    if (const auto second = second_document(text))
      fail(converter.origin(*second), "", "more than one YAML document");
    const YAML::Node document = YAML::Load(text);
    if (document.IsNull() && document.Mark().is_null()) {  // there is none
      Value v;
      v.origin = is_option ? Origin{source, 0, 0} : Origin{source, 1, 1};
      return v;
    }
    return converter.convert(document, 0);
  } catch (const YAML::Exception& e) {
    const Origin at = is_option ? Origin{source, 0, 0} : Origin{source, e.mark.line + 1, e.mark.column + 1};
    fail(at, "", fmt::format("not valid YAML: {}", e.msg));
  }
}

bool is_index(std::string_view word) {
  return !word.empty() &&
         std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c); });
}

bool plain_word(const std::string& s) {
  static const std::string safe = "_-./";
  if (s.empty() || s == "~" || s == "null" || s == "true" || s == "false" || s.front() == '-' ||
      s.front() == '.')
    return false;
  if (std::isdigit(static_cast<unsigned char>(s.front()))) return false;
  return std::all_of(s.begin(), s.end(), [](unsigned char c) {
    return std::isalnum(c) || safe.find(char(c)) != std::string::npos;
  });
}

std::string quote(const std::string& s) {
  std::string out = "\"";
  for (const char c : s) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string emit_key(const std::string& key) {
  return plain_word(key) || is_index(key) ? key : quote(key);
}

void emit_flow(const Value& v, std::string& out) {
  switch (v.kind) {
    case Value::Kind::null:
      out += "null";
      break;
    case Value::Kind::scalar:
      out += v.quoted && (!plain_word(v.scalar) || v.scalar.find('$') != std::string::npos) ? quote(v.scalar)
                                                                                            : v.scalar;
      break;
    case Value::Kind::sequence:
      out += '[';
      for (std::size_t i = 0; i < v.items.size(); ++i) {
        if (i) out += ", ";
        emit_flow(v.items[i], out);
      }
      out += ']';
      break;
    case Value::Kind::map:
      out += '{';
      for (std::size_t i = 0; i < v.entries.size(); ++i) {
        if (i) out += ", ";
        out += emit_key(v.entries[i].key) + ": ";
        emit_flow(v.entries[i].value, out);
      }
      out += '}';
      break;
  }
}

void emit_block(const Value& v, int indent, std::string& out) {
  constexpr std::size_t width = 100;
  const std::string pad(static_cast<std::size_t>(indent), ' ');
  const auto child = [&](const Value& value) {
    std::string flow;
    emit_flow(value, flow);
    const bool compound =
        (value.is_map() && !value.entries.empty()) || (value.is_sequence() && !value.items.empty());
    if (!compound || (flow.size() + pad.size() < width && indent > 0)) {
      out += ' ' + flow + '\n';
    } else {
      out += '\n';
      emit_block(value, indent + 2, out);
    }
  };
  if (v.is_map()) {
    for (const Value::Entry& e : v.entries) {
      out += pad + emit_key(e.key) + ':';
      child(e.value);
    }
  } else if (v.is_sequence()) {
    for (const Value& item : v.items) {
      out += pad + '-';
      child(item);
    }
  } else {
    emit_flow(v, out);
    out += '\n';
  }
}

}  // namespace

Value parse_text(const std::string& text, const std::string& source) {
  return parse(text, source, false);
}

Value parse_file(const std::string& path) {
  try {
    return parse_text(read_file(path), path);
  } catch (const FileError& e) {
    throw ConfigError(e.what());
  }
}

void apply_override(Value& root, const std::string& assignment) {
  const std::string source = "--set " + assignment;
  const Origin at{source, 0, 0};
  const std::size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0)
    fail(at, "", "expected key=value, with a dotted key such as train.seed=2");
  const std::string path = assignment.substr(0, equals);
  Value value = parse(assignment.substr(equals + 1), source, true);
  value.origin = at;

  Value* node = &root;
  std::size_t begin = 0;
  while (true) {
    const std::size_t dot = std::min(path.find('.', begin), path.size());
    const std::string word = path.substr(begin, dot - begin);
    if (word.empty()) fail(at, "", fmt::format("'{}' has an empty part", path));
    const bool last = dot == path.size();
    if (node->is_sequence()) {
      if (!is_index(word) || word.size() > 9 || std::stoul(word) >= node->items.size())
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

std::string emit(const Value& value) {
  std::string out;
  emit_block(value, 0, out);
  return out;
}

std::string emit_line(const Value& value) {
  std::string out;
  emit_flow(value, out);
  return out;
}

std::string expand_environment(const Value& v, std::string_view path) {
  if (!v.quoted) return v.scalar;
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
    out += text;
    i = end + 1;
  }
  return out;
}

std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates) {
  // Edit distance in which two neighbours swapped count as one slip (optimal string alignment).
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

std::string number_text(double value) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value);
  std::string out(text, end.ptr);
  const std::size_t e = out.find('e');
  // YAML 1.1 readers take "1e-04" for a string: a mantissa with a point is a number everywhere.
  if (e != std::string::npos && out.find('.') == std::string::npos) out.insert(e, ".0");
  return out;
}

}  // namespace lpsgd::config
