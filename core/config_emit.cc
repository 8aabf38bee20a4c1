// The tree of values to YAML text.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <string_view>

#include "core/config.h"

namespace lpsgd::config {

namespace {

bool plain_word(const std::string& s) {
  static const std::string safe = "_-./";
  static constexpr std::array<std::string_view, 4> reserved = {"~", "null", "Null", "NULL"};
  if (s.empty() || truth_of(s) || std::find(reserved.begin(), reserved.end(), s) != reserved.end() ||
      s.front() == '-' || s.front() == '.')
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
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string emit_key(const std::string& key) {
  const bool digits = !key.empty() && key.find_first_not_of("0123456789") == std::string::npos;
  return digits || plain_word(key) ? key : quote(key);
}

bool is_alnum(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0;
}

/// A value without quotes reads back as the same text, also between brackets.
bool plain_in_flow(const std::string& s) {
  if (s.empty() || s.back() == ' ' || s.back() == ':') return false;
  const char first = s.front();
  const bool starts = is_alnum(first) || std::string_view("_./+$(=<").find(first) != std::string_view::npos ||
                      (first == '-' && s.size() > 1 && (is_alnum(s[1]) || s[1] == '.' || s[1] == '$'));
  if (!starts) return false;
  for (std::size_t i = 0; i < s.size(); ++i) {
    if (s[i] == ':' && s[i + 1] == ' ') return false;
    if (!is_alnum(s[i]) && std::string_view(" _-./+*$!=<>()%^:").find(s[i]) == std::string_view::npos)
      return false;
  }
  return true;
}

/// An expression of a network that brackets around it would cut: quotes would make it a string, so it stands
/// on a line of its own.
bool needs_own_line(const Value& v) {
  switch (v.kind) {
    case Value::Kind::null:
      return false;
    case Value::Kind::scalar:
      return !v.quoted && v.scalar.find('$') != std::string::npos && !plain_in_flow(v.scalar);
    case Value::Kind::sequence:
      return std::any_of(v.items.begin(), v.items.end(), needs_own_line);
    case Value::Kind::map:
      return std::any_of(v.entries.begin(), v.entries.end(),
                         [](const Value::Entry& e) { return needs_own_line(e.value); });
  }
  return false;
}

std::string emit_scalar(const Value& v) {
  const bool expression = v.scalar.find('$') != std::string::npos;
  if (v.quoted) return !expression && plain_word(v.scalar) ? v.scalar : quote(v.scalar);
  return expression || plain_in_flow(v.scalar) ? v.scalar : quote(v.scalar);
}

void emit_flow(const Value& v, std::string& out) {
  switch (v.kind) {
    case Value::Kind::null:
      out += "null";
      break;
    case Value::Kind::scalar:
      out += emit_scalar(v);
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
    if (!compound || (flow.size() + pad.size() < width && indent > 0 && !needs_own_line(value))) {
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
  } else {
    for (const Value& item : v.items) {
      out += pad + '-';
      child(item);
    }
  }
}

}  // namespace

std::string emit(const Value& value) {
  std::string out;
  if (value.items.empty() && value.entries.empty()) {
    emit_flow(value, out);
    return out + '\n';
  }
  emit_block(value, 0, out);
  return out;
}

std::string emit_line(const Value& value) {
  std::string out;
  emit_flow(value, out);
  return out;
}

std::string number_text(double value) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value);
  std::string out(text, end.ptr);
  const std::size_t e = out.find('e');
  // YAML 1.1 readers read "1e-04" as a string; with a point in the mantissa it is a number everywhere.
  if (e != std::string::npos && out.find('.') == std::string::npos) out.insert(e, ".0");
  return out;
}

}  // namespace lpsgd::config
