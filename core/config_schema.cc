// The JSON schema of a configuration (json-schema.org, draft 7).
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/config_shape.h"

namespace lpsgd::config {

namespace {

using nlohmann::ordered_json;

/// The JSON value that YAML gives the word: a boolean, a number or a string.
ordered_json scalar(const std::string& word) {
  if (word == "true" || word == "false") return word == "true";
  std::int64_t integer = 0;
  double number = 0;
  const char* const last = word.data() + word.size();
  if (const auto r = std::from_chars(word.data(), last, integer); r.ec == std::errc{} && r.ptr == last)
    return integer;
  if (const auto r = std::from_chars(word.data(), last, number); r.ec == std::errc{} && r.ptr == last)
    return number;
  return word;
}

ordered_json value(const Value& v) {
  switch (v.kind) {
    case Value::Kind::null:
      break;
    case Value::Kind::scalar:
      return v.quoted ? ordered_json(v.scalar) : scalar(v.scalar);
    case Value::Kind::sequence: {
      ordered_json list = ordered_json::array();
      for (const Value& item : v.items) list.push_back(value(item));
      return list;
    }
    case Value::Kind::map: {
      ordered_json map = ordered_json::object();
      for (const Value::Entry& e : v.entries) map[e.key] = value(e.value);
      return map;
    }
  }
  return nullptr;
}

ordered_json bound(double x) {
  return x == std::floor(x) && std::abs(x) < 1e15 ? ordered_json(static_cast<std::int64_t>(x))
                                                  : ordered_json(x);
}

/// A section with a required key is required, too.
bool needs_value(const Field& field) {
  return field.is_required ||
         (field.is_section && std::any_of(field.shape.fields.begin(), field.shape.fields.end(), needs_value));
}

class SchemaWriter {
 public:
  ordered_json schema(const Shape& shape) {
    if (shape.name.empty()) return unnamed(shape);
    if (!definitions.contains(shape.name)) definitions[shape.name] = unnamed(shape);
    return {{"$ref", "#/definitions/" + shape.name}};
  }

  ordered_json map(std::span<const Field> fields) {
    ordered_json properties = ordered_json::object(), required = ordered_json::array();
    for (const Field& f : fields) {
      ordered_json property = {{"description", f.help}};
      const ordered_json of_value = schema(f.shape);
      if (of_value.contains("$ref"))  // draft 7 ignores the other keys beside $ref
        property["allOf"] = {of_value};
      else
        property.update(of_value);
      if (needs_value(f))
        required.push_back(f.key);
      else if (!f.fallback.is_null())
        property["default"] = value(f.fallback);
      else if (f.shape.kind == Shape::Kind::map)
        property["type"] = {"object", "null"};  // a section may be empty
      properties[f.key] = std::move(property);
    }
    ordered_json out = {{"type", "object"}, {"properties", properties}, {"additionalProperties", false}};
    if (!required.empty()) out["required"] = std::move(required);
    return out;
  }

  ordered_json definitions = ordered_json::object();

 private:
  static ordered_json bounded(const char* type, const Range& range) {
    ordered_json out = {{"type", type}};
    if (std::isfinite(range.min)) out[range.min_open ? "exclusiveMinimum" : "minimum"] = bound(range.min);
    if (std::isfinite(range.max)) out[range.max_open ? "exclusiveMaximum" : "maximum"] = bound(range.max);
    if (range.multiple_of != 0) out["multipleOf"] = range.multiple_of;
    return out;
  }

  ordered_json unnamed(const Shape& shape) {
    switch (shape.kind) {
      case Shape::Kind::any:
        break;
      case Shape::Kind::boolean:
        return {{"type", "boolean"}};
      case Shape::Kind::integer:
        return bounded("integer", shape.range);
      case Shape::Kind::number:
        return bounded("number", shape.range);
      case Shape::Kind::text: {
        ordered_json out = {{"type", "string"}};
        if (!shape.pattern.empty()) out["pattern"] = shape.pattern;
        return out;
      }
      case Shape::Kind::word: {
        ordered_json words = ordered_json::array();
        for (const std::string& word : shape.words) words.push_back(scalar(word));
        return {{"enum", words}};
      }
      case Shape::Kind::list:
        return {{"type", "array"}, {"items", schema(shape.items[0])}};
      case Shape::Kind::map:
        return map(shape.fields);
      case Shape::Kind::table:
        if (shape.pattern.empty()) return {{"type", "object"}};
        return {{"type", "object"},
                {"patternProperties", {{shape.pattern, schema(shape.items[0])}}},
                {"additionalProperties", false}};
      case Shape::Kind::choice: {
        ordered_json alternatives = ordered_json::array();
        for (const Shape& item : shape.items) alternatives.push_back(schema(item));
        return {{"anyOf", alternatives}};
      }
    }
    return ordered_json::object();
  }
};

}  // namespace

std::string json_schema(std::span<const Field> fields, const std::string& title) {
  SchemaWriter writer;
  const ordered_json map = writer.map(fields);
  ordered_json out = {{"$schema", "http://json-schema.org/draft-07/schema#"}, {"title", title}};
  out.update(map);
  out["definitions"] = writer.definitions;
  return out.dump(1) + "\n";
}

}  // namespace lpsgd::config
