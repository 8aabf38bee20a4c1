// YAML text to the tree of values, with yaml-cpp.
#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <unordered_set>

#include "core/config.h"
#include "core/error.h"
#include "core/file.h"
#include "core/printable.h"

namespace lpsgd::config {

namespace {

constexpr std::uint64_t max_bytes = 1 << 20;  // of a file; the largest in configs/ has 4 KB

struct Converter {
  const std::string& source;
  bool is_option;  // errors in a command-line option have no line or column
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
    check_tag(node, v.origin);
    switch (node.Type()) {
      case YAML::NodeType::Undefined:
      case YAML::NodeType::Null:
        break;
      case YAML::NodeType::Scalar:
        v.kind = Value::Kind::scalar;
        v.scalar = node.Scalar();
        v.quoted = node.Tag() == "!";
        check_text(v.scalar, v.origin);
        if (!v.quoted) check_plain(v.scalar, v.origin);
        if (const std::optional<bool> truth = truth_of(v.scalar); truth && !v.quoted)
          v.scalar = *truth ? "true" : "false";
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
        add_entries(node, depth, v);
        break;
    }
    return v;
  }

  /// "?" and "!" are yaml-cpp's tags of plain and of quoted values without one.
  static void check_tag(const YAML::Node& node, const Origin& at) {
    const std::string& tag = node.Tag();
    if (!tag.empty() && tag != "?" && tag != "!")
      fail(at, "", fmt::format("tags are not taken, this has '{}'", printable(tag)));
  }

  /// yaml-cpp reads the escapes \N and \_ as single bytes of Latin-1.
  static void check_text(const std::string& text, const Origin& at) {
    if (valid_utf8_prefix(text) < text.size()) fail(at, "", "text with \\N or \\_, which are not taken");
  }

  /// A value without quotes may be an expression of a network, which stands on one line.
  static void check_plain(const std::string& text, const Origin& at) {
    if (text.find_first_of("\r\n") != std::string::npos)
      fail(at, "", "a line break in a value without quotes");
    if (text.starts_with("---") || text.starts_with("..."))
      fail(at, "", fmt::format("a value that begins with '{}' needs quotes", text.substr(0, 3)));
  }

  void add_entries(const YAML::Node& node, int depth, Value& map) {
    std::unordered_set<std::string> keys;
    for (const auto& entry : node) {
      const Origin at = origin(entry.first.Mark());
      if (!entry.first.IsScalar()) fail(at, "", "a key must be a plain word");
      const std::string& key = entry.first.Scalar();
      check_tag(entry.first, at);
      check_text(key, at);
      check_key_size(key, at);
      if (key == "<<") fail(at, "", "merge keys ('<<') are not part of YAML 1.2; write the keys out");
      if (!keys.insert(key).second) fail(at, "", fmt::format("duplicate key '{}'", printable(key)));
      map.entries.push_back({key, at, convert(entry.second, depth + 1)});
    }
  }
};

/// Keeps the position of a document's first node.
class FirstNode final : public YAML::EventHandler {
 public:
  std::optional<YAML::Mark> mark;

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& at, YAML::anchor_t) override { note(at); }
  void OnAlias(const YAML::Mark& at, YAML::anchor_t) override { note(at); }
  void OnScalar(const YAML::Mark& at, const std::string&, YAML::anchor_t, const std::string&) override {
    note(at);
  }
  void OnSequenceStart(const YAML::Mark& at, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    note(at);
  }
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& at, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    note(at);
  }
  void OnMapEnd() override {}

 private:
  void note(const YAML::Mark& at) {
    if (!mark) mark = at;
  }
};

/// The second document's first node, if there is a second one. (YAML::LoadAll reads a stray token, such as a
/// lone ',', as endlessly many empty documents.)
std::optional<YAML::Mark> second_document(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  FirstNode first, second;
  if (!parser.HandleNextDocument(first) || !parser.HandleNextDocument(second)) return std::nullopt;
  return second.mark.value_or(YAML::Mark());
}

Value parse(const std::string& text, const std::string& source, bool is_option) {
  // yaml-cpp takes a text that begins with zeros for UTF-16 or UTF-32.
  if (const std::size_t bad = plain_text_prefix(text); bad < text.size()) {
    const std::size_t line_start = text.rfind('\n', bad) + 1;  // 0 on the first line
    const auto line = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(bad), '\n') + 1;
    fail(is_option ? Origin{source, 0, 0}
                   : Origin{source, static_cast<int>(line), static_cast<int>(bad - line_start) + 1},
         "", not_plain(text[bad]));
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

}  // namespace

std::size_t plain_text_prefix(std::string_view text) {
  const auto is_control = [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7f;
  };
  const auto control = std::find_if(text.begin(), text.end(), is_control) - text.begin();
  return std::min(valid_utf8_prefix(text), static_cast<std::size_t>(control));
}

std::string not_plain(char byte) {
  const auto code = static_cast<unsigned char>(byte);
  return fmt::format("byte 0x{:02x} is {}", code, code < 0x80 ? "a control character" : "not UTF-8 text");
}

Value parse_text(const std::string& text, const std::string& source) {
  return parse(text, source, false);
}

Value parse_option(const std::string& text, const std::string& option) {
  return parse(text, option, true);
}

Value parse_file(const std::string& path) {
  try {
    return parse_text(read_file(path, max_bytes), path);
  } catch (const FileError& e) {
    throw ConfigError(e.what());
  }
}

}  // namespace lpsgd::config
