// What a configuration may hold, as data. The Describer runs the same `fields` functions as the Reader. What
// it collects becomes the reference, `lpsgd help` and the JSON schema.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/config.h"

namespace lpsgd::config {

struct Field;

/// The values that a key takes.
struct Shape {
  enum class Kind : std::uint8_t { any, boolean, integer, number, text, word, list, map, table, choice };

  Kind kind = Kind::any;
  Range range;                     // integer, number
  std::string pattern;             // text: a regular expression of the whole value; empty: any text
  std::vector<std::string> words;  // word: one of these
  std::vector<Field> fields;       // map: its keys
  std::vector<Shape> items;        // list: of its elements (one); choice: the alternatives
  std::string name;                // choice: used by several keys and described once
  std::string title;               // map in a choice: distinguishes it, such as "kind: qsgd"

  static Shape word(std::vector<std::string> words);
  static Shape text(std::string pattern = "");
  static Shape integer(Range range = {});
  static Shape number(Range range = {});
  static Shape list(Shape element);
  static Shape choice(std::vector<Shape> alternatives);
  /// A map whose keys are positive integers.
  static Shape table(Shape element);
  /// A map of any keys.
  static Shape any_map();
  /// A map of the keys that `declare` declares.
  static Shape map(const std::function<void(Visitor&)>& declare);
};

/// One key of a map.
struct Field {
  std::string key;
  std::string type;  // the values in words: "an integer >= 1"
  std::string help;
  Value fallback;  // the default; null: none
  bool is_required = false;
  Shape shape;
  bool is_section = false;

  /// "required", or the default as one writes it.
  std::string fallback_text() const;
};

/// Collects the declared fields.
class Describer final : public Visitor {
 public:
  void field(const char* key, bool& value, const char* help) override;
  void field(const char* key, std::int64_t& value, const char* help, Range range = {}) override;
  void field(const char* key, double& value, const char* help, Range range = {}) override;
  void field(const char* key, std::string& value, const char* help) override;
  void field(const char* key, std::vector<std::string>& value, const char* help) override;
  void field(const char* key, std::vector<double>& value, const char* help) override;
  void field(const char* key, std::vector<std::int64_t>& value, const char* help, Range range = {}) override;
  void choice(const char* key, std::size_t& index, std::span<const char* const> names,
              const char* help) override;
  void custom(const char* key, const char* type, const char* help,
              const std::function<void(const Value&, const std::string&)>& parse,
              const std::function<Value()>& write) override;
  void section(const char* key, const char* help, const std::function<void(Visitor&)>& body) override;
  void required() override { is_required_ = true; }
  void shape(const std::function<Shape()>& of_next) override { shape_ = of_next(); }
  using Visitor::choice;

  const std::vector<Field>& fields() const { return fields_; }

 private:
  void add(const char* key, std::string type, Value fallback, const char* help, Shape shape);

  bool is_required_ = false;
  Shape shape_;  // of the next custom field
  std::vector<Field> fields_;
};

/// The fields as a Markdown table with a row each; `prefix` comes before each key.
std::string markdown_table(std::span<const Field> fields, const std::string& prefix = "");

/// A JSON schema (draft 7, which editors read) of a file with these keys.
std::string json_schema(std::span<const Field> fields, const std::string& title);

}  // namespace lpsgd::config
