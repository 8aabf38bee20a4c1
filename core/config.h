// Configuration. YAML text becomes a tree; each value keeps its line and column. Visitors turn the tree into
// plain structs and back.
//
// A struct declares its options once, in a function `void fields(config::Visitor&, S&)`. Reading, writing and
// the documentation tables all call that function. Reading refuses unknown keys (with a suggestion), wrong
// types, values out of range and duplicate keys. It throws ConfigError "file:line:column: a.b.c: what is
// wrong".
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

#include "core/error.h"

namespace lpsgd::config {

/// Where a value was written: a file with line and column, both counted from 1, or a command-line option,
/// which has line 0.
struct Origin {
  std::string source;
  int line = 0;
  int column = 0;
  std::string text() const;  // "file:line:column" or "--set a.b=value"
};

/// One node of the tree. Scalars keep their text. A `quoted` scalar is always a string. Only in quoted
/// scalars does "${NAME}" stand for an environment variable.
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
/// A key that its map does not have.
class UnknownKeyError : public ConfigError {
 public:
  UnknownKeyError(const std::string& what, std::string key) : ConfigError(what), key_(std::move(key)) {}
  const std::string& key() const { return key_; }

 private:
  std::string key_;
};

constexpr int max_depth = 64;               // of a tree; its root has depth 0
constexpr std::size_t max_nodes = 100'000;  // limits what aliases can expand a small file to
constexpr std::size_t max_key_bytes = 200;  // YAML takes 1,024, which escapes reach with a quarter of that

/// Throws ConfigError if it is too long.
void check_key_size(std::string_view key, const Origin& at);

/// The first byte that a configuration may not hold, or the text's size: control characters but for tabs and
/// line ends, and what is not UTF-8.
std::size_t plain_text_prefix(std::string_view text);
/// "byte 0x90 is not UTF-8 text". `byte`: one that plain_text_prefix() has found.
std::string not_plain(char byte);

/// Parses YAML text. `source` names it in errors. Throws ConfigError on syntax errors and duplicate keys.
Value parse_text(const std::string& text, const std::string& source);
/// Parses the value of a command-line option. Errors name `option` without a line or column.
Value parse_option(const std::string& text, const std::string& option);
/// Parses a file. Throws ConfigError also when it cannot be read.
Value parse_file(const std::string& path);
/// Applies "a.b.c=value" to the tree. The value is any YAML. A number in the path is an index into a
/// sequence.
void apply_override(Value& root, const std::string& assignment);
/// The tree as YAML text in block style, with short maps in flow style.
std::string emit(const Value& value);
/// The tree in flow style, on one line.
std::string emit_line(const Value& value);
/// Replaces every ${NAME} in a quoted scalar. Throws ConfigError if a variable is not set, if no
/// configuration could hold its text, or if it stands without quotes.
std::string expand_environment(const Value& scalar, std::string_view path);
/// Whether it has such a variable.
bool names_environment(const Value& value);
/// The candidate nearest to `word` by edit distance, or nothing if all differ too much to be a misspelling.
std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates);
/// ", did you mean 'X'?" with the nearest candidate, or an empty string if there is none.
std::string did_you_mean(std::string_view word, std::span<const std::string> candidates);

/// The allowed values of a number.
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_open = false;         // min itself is refused
  bool max_open = false;         // max itself is refused
  std::int64_t multiple_of = 0;  // 0: no restriction
  std::string text() const;      // ">= 1", "from 0 to 1"
};

struct Shape;  // core/config_shape.h

/// Visits the fields that a `fields` function declares. Derived classes read, write or list them.
class Visitor {
 public:
  virtual ~Visitor() = default;

  // An optional field: `value` holds the default.
  virtual void field(const char* key, bool& value, const char* help) = 0;
  virtual void field(const char* key, std::int64_t& value, const char* help, Range range = {}) = 0;
  virtual void field(const char* key, double& value, const char* help, Range range = {}) = 0;
  virtual void field(const char* key, std::string& value, const char* help) = 0;
  virtual void field(const char* key, std::vector<std::string>& value, const char* help) = 0;
  virtual void field(const char* key, std::vector<double>& value, const char* help) = 0;
  virtual void field(const char* key, std::vector<std::int64_t>& value, const char* help,
                     Range range = {}) = 0;
  /// One of `names`. `index` is its position in `names`.
  virtual void choice(const char* key, std::size_t& index, std::span<const char* const> names,
                      const char* help) = 0;
  /// A field whose value has its own structure. `parse` is called with the subtree if the key is present, and
  /// reports errors through fail(). `write` returns the value to emit; null emits nothing.
  virtual void custom(const char* key, const char* type, const char* help,
                      const std::function<void(const Value&, const std::string& path)>& parse,
                      const std::function<Value()>& write) = 0;
  /// A nested map, whose fields `body` declares.
  virtual void section(const char* key, const char* help, const std::function<void(Visitor&)>& body) = 0;
  /// The field declared next must be present.
  virtual void required() = 0;
  /// The values that the next custom field takes, for the documentation and the schema; other visitors ignore
  /// it.
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

/// What becomes of "${NAME}" in strings: its value; nothing; or its value if it is set. With `if_set` a
/// number or a word that is not known because of a variable keeps its default.
enum class Environment : std::uint8_t { expand, keep, if_set };

/// Reads a map into the declared fields. Call finish() at the end to refuse unknown keys, as read() does.
class Reader final : public Visitor {
 public:
  /// `path` is the dotted path of `value` in the configuration. It is empty for the root.
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

  /// Throws ConfigError if the map holds a key that no field declared, or lacks one that must be given.
  void finish();

 private:
  /// A key that must be given, and is not.
  struct Missing {
    std::string key;  // of this map
    std::string path, message;
    Origin origin;
    bool decides = false;  // which other keys are known
  };
  const Value* take(const char* key);
  /// Null also where the value is not known: a variable that is not set, and may be.
  const Value* take_known(const char* key);
  std::string path_of(std::string_view key) const;
  [[noreturn]] void refuse(const Value::Entry& unknown) const;

  const Value& value_;
  std::string path_;
  Environment environment_;
  bool required_ = false;
  std::optional<Missing> missing_;  // the first
  std::vector<std::string> known_;
};

/// Builds a tree from the values of the declared fields.
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

/// Reads a map into `out` through fields(Visitor&, S&). Refuses unknown keys.
template <class S>
void read(const Value& value, const std::string& path, S& out,
          Environment environment = Environment::expand) {
  Reader reader(value, path, environment);
  fields(reader, out);
  reader.finish();
}

/// The tree that holds the options of `in`.
template <class S>
Value write(const S& in) {
  Writer writer;
  S copy = in;
  fields(writer, copy);
  return writer.take();
}

/// Of a plain word as YAML 1.2 has it: true, True, TRUE, and the same of false. Nothing of another word.
std::optional<bool> truth_of(std::string_view word);

// Conversions of scalars, for `parse` functions. Throw ConfigError, which names `path`.
bool to_bool(const Value& value, std::string_view path);
std::int64_t to_integer(const Value& value, std::string_view path, const Range& range = {});
/// Steps compute in float32, so a number beyond its largest one is refused.
double to_number(const Value& value, std::string_view path, const Range& range = {});
std::string to_string(const Value& value, std::string_view path,
                      Environment environment = Environment::expand);

/// The shortest text that parses back to the same double.
std::string number_text(double value);

}  // namespace lpsgd::config
