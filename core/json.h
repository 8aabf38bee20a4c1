// JSON from files, with bounds: a small file must not take much memory, much time or a deep stack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace lpsgd {

struct JsonBounds {
  int depth = 16;                    // of nested objects and arrays
  std::size_t values = 50'000;       // also the keys
  std::size_t object_keys = 20'000;  // an ordered object takes time quadratic in its keys
};

/// The value that `text` holds. Throws FileError "<source>: <what is wrong>" if it is not one JSON value,
/// holds a key twice in an object, or exceeds a bound. Json: nlohmann::json or nlohmann::ordered_json.
template <class Json = nlohmann::ordered_json>
Json parse_json(std::string_view text, const std::string& source, const JsonBounds& bounds = {});

/// A number of things. Throws FileError "<source>: <number> is an impossible number" if it is none, or more
/// than `max`. (The library's own conversion takes any number, and its result is then undefined.)
template <class Json>
std::int64_t whole_number(const Json& number, const std::string& source,
                          std::uint64_t max = std::uint64_t{1} << 62);

extern template std::int64_t whole_number(const nlohmann::json&, const std::string&, std::uint64_t);
extern template std::int64_t whole_number(const nlohmann::ordered_json&, const std::string&, std::uint64_t);
extern template nlohmann::json parse_json(std::string_view, const std::string&, const JsonBounds&);
extern template nlohmann::ordered_json parse_json(std::string_view, const std::string&, const JsonBounds&);

}  // namespace lpsgd
