// JSON as text that is always valid: bytes that are not UTF-8 (of a path, a command line) become U+FFFD.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace lpsgd {

/// indent -1: one line.
inline std::string json_text(const nlohmann::ordered_json& value, int indent = -1) {
  return value.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace lpsgd
