// YAML text to the tree of values, with yaml-cpp.
#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <optional>
#include <sstream>

#include "core/config.h"
#include "core/error.h"
#include "core/file.h"

namespace lpsgd::config {

namespace {

constexpr int max_depth = 64;
constexpr std::size_t max_nodes = 100'000;  // limits what aliases can expand a small file to

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

/// The first byte that is not valid UTF-8, if any.
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

}  // namespace

Value parse_text(const std::string& text, const std::string& source) {
  return parse(text, source, false);
}

Value parse_option(const std::string& text, const std::string& option) {
  return parse(text, option, true);
}

Value parse_file(const std::string& path) {
  try {
    return parse_text(read_file(path), path);
  } catch (const FileError& e) {
    throw ConfigError(e.what());
  }
}

}  // namespace lpsgd::config
