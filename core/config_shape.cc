// Describing declared fields.
#include "core/config_shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lpsgd::config {

namespace {

std::string with_range(const char* noun, const Range& range) {
  const std::string bounds = range.text();
  return bounds.empty() ? noun : fmt::format("{} {}", noun, bounds);
}

template <class T, class Convert>
Value list_of(const std::vector<T>& values, Convert convert) {
  Value list = Value::sequence();
  for (const T& value : values) list.items.push_back(Value::plain(convert(value)));
  return list;
}

Shape of_kind(Shape::Kind kind) {
  Shape shape;
  shape.kind = kind;
  return shape;
}

}  // namespace

Shape Shape::word(std::vector<std::string> words) {
  Shape shape = of_kind(Kind::word);
  shape.words = std::move(words);
  return shape;
}

Shape Shape::text(std::string pattern) {
  Shape shape = of_kind(Kind::text);
  shape.pattern = std::move(pattern);
  return shape;
}

Shape Shape::integer(Range range) {
  Shape shape = of_kind(Kind::integer);
  shape.range = range;
  return shape;
}

Shape Shape::number(Range range) {
  Shape shape = of_kind(Kind::number);
  shape.range = range;
  return shape;
}

Shape Shape::list(Shape element) {
  Shape shape = of_kind(Kind::list);
  shape.items.push_back(std::move(element));
  return shape;
}

Shape Shape::choice(std::vector<Shape> alternatives) {
  Shape shape = of_kind(Kind::choice);
  shape.items = std::move(alternatives);
  return shape;
}

Shape Shape::table(Shape element) {
  Shape shape = of_kind(Kind::table);
  shape.pattern = "^[0-9]+$";
  shape.items.push_back(std::move(element));
  return shape;
}

Shape Shape::any_map() {
  Shape shape = of_kind(Kind::table);
  shape.items.emplace_back();
  return shape;
}

Shape Shape::map(const std::function<void(Visitor&)>& declare) {
  Describer describer;
  declare(describer);
  Shape shape = of_kind(Kind::map);
  shape.fields = describer.fields();
  return shape;
}

std::string Field::fallback_text() const {
  if (is_required) return "required";
  if (fallback.is_null()) return "none";
  if (fallback.is_scalar()) return fallback.scalar.empty() ? "empty" : fallback.scalar;
  return emit_line(fallback);
}

void Describer::add(const char* key, std::string type, Value fallback, const char* help, Shape shape) {
  fields_.push_back({key, std::move(type), help, std::move(fallback), std::exchange(is_required_, false),
                     std::move(shape), false});
}

void Describer::field(const char* key, bool& value, const char* help) {
  add(key, "true or false", Value::plain(value ? "true" : "false"), help, of_kind(Shape::Kind::boolean));
}

void Describer::field(const char* key, std::int64_t& value, const char* help, Range range) {
  add(key, with_range("integer", range), Value::plain(fmt::format("{}", value)), help, Shape::integer(range));
}

void Describer::field(const char* key, double& value, const char* help, Range range) {
  add(key, with_range("number", range), Value::plain(number_text(value)), help, Shape::number(range));
}

void Describer::field(const char* key, std::string& value, const char* help) {
  add(key, "string", Value::string(value), help, Shape::text());
}

void Describer::field(const char* key, std::vector<std::string>& value, const char* help) {
  add(key, "list of words", list_of(value, [](const std::string& s) { return s; }), help,
      Shape::list(Shape::text()));
}

void Describer::field(const char* key, std::vector<double>& value, const char* help) {
  add(key, "list of numbers", list_of(value, number_text), help, Shape::list(Shape::number()));
}

void Describer::field(const char* key, std::vector<std::int64_t>& value, const char* help, Range range) {
  add(key, with_range("list of integers", range),
      list_of(value, [](std::int64_t x) { return std::to_string(x); }), help,
      Shape::list(Shape::integer(range)));
}

void Describer::choice(const char* key, std::size_t& index, std::span<const char* const> names,
                       const char* help) {
  add(key, fmt::format("{}", fmt::join(names, ", ")), Value::plain(names[index]), help,
      Shape::word({names.begin(), names.end()}));
}

void Describer::custom(const char* key, const char* type, const char* help,
                       const std::function<void(const Value&, const std::string&)>&,
                       const std::function<Value()>& write) {
  add(key, type, write(), help, std::exchange(shape_, {}));
}

void Describer::section(const char* key, const char* help, const std::function<void(Visitor&)>& body) {
  add(key, "section", Value(), help, Shape::map(body));
  fields_.back().is_section = true;
}

std::string markdown_table(std::span<const Field> fields, const std::string& prefix) {
  std::string out = "| key | value | default | meaning |\n|---|---|---|---|\n";
  for (const Field& f : fields)
    out += fmt::format("| `{}{}` | {} | `{}` | {} |\n", prefix, f.key, f.type, f.fallback_text(), f.help);
  return out;
}

}  // namespace lpsgd::config
