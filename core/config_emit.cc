// The tree of values to YAML text.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "core/config.h"

namespace lpsgd::config {

namespace {

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
  const bool digits = !key.empty() && key.find_first_not_of("0123456789") == std::string::npos;
  return digits || plain_word(key) ? key : quote(key);
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
