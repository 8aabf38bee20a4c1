// Configuration: YAML text as a tree that remembers where each value was written, and the visitors that turn
// it into plain structs and back.
//
// A struct's options are declared once, in a function `void fields(config::Visitor&, S&)`; reading, writing
// and the documentation tables all run that function. Reading refuses unknown keys (and suggests the
// nearest), wrong types, values out of range and duplicate keys with a ConfigError "file:line:column: a.b.c:
// what is wrong".
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lpsgd::config {

/// Where a value was written: a file with line and column from 1, or (line 0) a command-line option.
struct Origin {
  std::string source;
  int line = 0;
  int column = 0;
  std::string text() const;  // "file:line:column" or "--set a.b=value"
};

/// One node of the tree. Scalars keep their text; `quoted` ones are strings for certain, and only in them
/// "${NAME}" stands for an environment variable.
struct Value {
  enum class Kind : std::uint8_t { null, scalar, sequence, map };
  struct Entry;

  Kind kind = Kind::null;
  bool quoted = false;
  std::string scalar;
  std::vector<Value> items;    // of a sequence
  std::vector<Entry> entries;  // of a map, in the order written
  Origin origin;

  bool is_null() const { return kind == Kind::null; }
  bool is_scalar() const { return kind == Kind::scalar; }
  bool is_sequence() const { return kind == Kind::sequence; }
  bool is_map() const { return kind == Kind::map; }
  const Value* find(std::string_view key) const;  // nullptr when absent or not a map
  Value* find(std::string_view key);
  void set(std::string_view key, Value value);  // replaces or appends; makes a null a map

  static Value string(std::string text);  // quoted
  static Value plain(std::string text);   // as written in YAML: a number, a bool, a bare word
  static Value map();
  static Value sequence();
};

struct Value::Entry {
  std::string key;
  Origin origin;
  Value value;
};

/// Throws ConfigError "<origin>: <path>: <message>".
[[noreturn]] void fail(const Origin& origin, std::string_view path, std::string_view message);

/// Parses YAML text; `source` names it in errors. Duplicate keys and syntax errors throw ConfigError.
Value parse_text(const std::string& text, const std::string& source);
/// Parses a file. ConfigError when it cannot be read.
Value parse_file(const std::string& path);
/// Applies "a.b.c=value" (value: any YAML, often in flow style) to the tree. Numbers index sequences.
void apply_override(Value& root, const std::string& assignment);
/// The tree as YAML text, block style with short maps in flow style.
std::string emit(const Value& value);
/// The tree in flow style, on one line.
std::string emit_line(const Value& value);
/// Replaces every ${NAME} in a quoted scalar; an unset variable throws ConfigError at its origin.
std::string expand_environment(const Value& scalar, std::string_view path);
/// The candidate nearest to `word` by edit distance, if near enough to be a misspelling.
std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates);
/// ", did you mean 'X'?" for the nearest one, or nothing.
std::string did_you_mean(std::string_view word, std::span<const std::string> candidates);

/// Allowed values of a number. `multiple_of` 0: any.
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_open = false;  // min itself is refused
  std::int64_t multiple_of = 0;
  std::string text() const;  // "an integer >= 1" without the noun: ">= 1"
};

struct Shape;  // core/config_shape.h

/// What happens to the fields that a `fields` function declares.
class Visitor {
 public:
  virtual ~Visitor() = default;

  // Optional fields: `value` holds the default.
  virtual void field(const char* key, bool& value, const char* help) = 0;
  virtual void field(const char* key, std::int64_t& value, const char* help, Range range = {}) = 0;
  virtual void field(const char* key, double& value, const char* help, Range range = {}) = 0;
  virtual void field(const char* key, std::string& value, const char* help) = 0;
  virtual void field(const char* key, std::vector<std::string>& value, const char* help) = 0;
  virtual void field(const char* key, std::vector<double>& value, const char* help) = 0;
  virtual void field(const char* key, std::vector<std::int64_t>& value, const char* help,
                     Range range = {}) = 0;
  /// One of `names`; `index` is its position.
  virtual void choice(const char* key, std::size_t& index, std::span<const char* const> names,
                      const char* help) = 0;
  /// A subtree handed over as it is, for fields with a shape of their own (`parse` may throw through fail()).
  /// `parse` runs when the key is present, `write` gives the value to emit (null: nothing to emit).
  virtual void custom(const char* key, const char* type, const char* help,
                      const std::function<void(const Value&, const std::string& path)>& parse,
                      const std::function<Value()>& write) = 0;
  virtual void section(const char* key, const char* help, const std::function<void(Visitor&)>& body) = 0;
  /// The next field must be present.
  virtual void required() = 0;
  /// The values that the next custom field takes, for the documentation and the schema; others ignore it.
  virtual void shape(const std::function<Shape()>&) {}

  template <class E>
  void choice(const char* key, E& value, std::initializer_list<std::pair<const char*, E>> table,
              const char* help) {
    std::vector<const char*> names;
    std::size_t index = 0;
    for (const auto& [name, e] : table) {
      if (e == value) index = names.size();
      names.push_back(name);
    }
    choice(key, index, std::span<const char* const>(names), help);
    value = (table.begin() + index)->second;
  }
};

enum class Environment : std::uint8_t { expand, keep };

/// Reads a map into the declared fields. Call finish() (or use read()) so that unknown keys are refused.
class Reader final : public Visitor {
 public:
  /// `path` is the dotted path of `value` in the configuration, empty for the root.
  Reader(const Value& value, std::string path, Environment environment = Environment::expand);

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
  void required() override { required_ = true; }
  using Visitor::choice;

  /// Refuses keys that no field declared.
  void finish();

 private:
  const Value* take(const char* key);
  std::string path_of(std::string_view key) const;

  const Value& value_;
  std::string path_;
  Environment environment_;
  bool required_ = false;
  std::vector<std::string> known_;
};

/// Builds the tree of the declared fields' values.
class Writer final : public Visitor {
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
  void required() override {}
  using Visitor::choice;

  Value take() { return std::move(value_); }

 private:
  Value value_ = Value::map();
};

/// Reads a map into `out` through fields(Visitor&, S&) and refuses unknown keys.
template <class S>
void read(const Value& value, const std::string& path, S& out,
          Environment environment = Environment::expand) {
  Reader reader(value, path, environment);
  fields(reader, out);
  reader.finish();
}

/// The tree of `in`.
template <class S>
Value write(const S& in) {
  Writer writer;
  S copy = in;
  fields(writer, copy);
  return writer.take();
}

// Scalars, for parsers of their own. `path` appears in the error.
bool to_bool(const Value& value, std::string_view path);
std::int64_t to_integer(const Value& value, std::string_view path, const Range& range = {});
double to_number(const Value& value, std::string_view path, const Range& range = {});
std::string to_string(const Value& value, std::string_view path,
                      Environment environment = Environment::expand);

/// The shortest text that reads back as the same double.
std::string number_text(double value);

}  // namespace lpsgd::config
