// Reading and writing declared fields.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <limits>

#include "core/config.h"
#include "core/error.h"

namespace lpsgd::config {

namespace {

std::string description_of(const Value& v) {
  switch (v.kind) {
    case Value::Kind::null:
      return "nothing";
    case Value::Kind::sequence:
      return "a list";
    case Value::Kind::map:
      return "a map";
    case Value::Kind::scalar:
      break;
  }
  return v.quoted ? fmt::format("the string \"{}\"", v.scalar) : fmt::format("'{}'", v.scalar);
}

[[noreturn]] void wrong_type(const Value& v, std::string_view path, const std::string& expected) {
  fail(v.origin, path, fmt::format("expected {}, got {}", expected, description_of(v)));
}

std::string expected_number(const char* noun, const Range& range) {
  const std::string bounds = range.text();
  return bounds.empty() ? noun : fmt::format("{} {}", noun, bounds);
}

bool in_range(double x, const Range& range) {
  if (x < range.min || (range.min_open && x == range.min)) return false;
  if (x > range.max || (range.max_open && x == range.max)) return false;
  return range.multiple_of == 0 || std::fmod(x, static_cast<double>(range.multiple_of)) == 0;
}

template <class T, class Convert>
std::vector<T> to_list(const Value& v, const std::string& path, const char* noun, Convert convert) {
  if (!v.is_sequence()) wrong_type(v, path, fmt::format("a list of {}", noun));
  std::vector<T> out;
  for (std::size_t i = 0; i < v.items.size(); ++i)
    out.push_back(convert(v.items[i], fmt::format("{}[{}]", path, i)));
  return out;
}

}  // namespace

std::string Range::text() const {
  // A limit such as 1e9 is written out.
  const auto limit = [](double x) {
    return x == std::floor(x) && std::abs(x) < 1e15 ? fmt::format("{:.0f}", x) : number_text(x);
  };
  std::string out;
  const bool low = std::isfinite(min);
  const bool high = std::isfinite(max);
  if (low && high && !min_open && !max_open) {
    out = fmt::format("from {} to {}", limit(min), limit(max));
  } else {
    if (low) out = fmt::format("{} {}", min_open ? ">" : ">=", limit(min));
    if (high) out += fmt::format("{}{} {}", low ? " and " : "", max_open ? "<" : "<=", limit(max));
  }
  if (multiple_of) out += fmt::format("{}that is a multiple of {}", out.empty() ? "" : " ", multiple_of);
  return out;
}

std::optional<bool> truth_of(std::string_view word) {
  if (word == "true" || word == "True" || word == "TRUE") return true;
  if (word == "false" || word == "False" || word == "FALSE") return false;
  return std::nullopt;
}

bool to_bool(const Value& v, std::string_view path) {
  if (v.is_scalar() && !v.quoted)
    if (const std::optional<bool> truth = truth_of(v.scalar)) return *truth;
  wrong_type(v, path, "true or false");
}

std::int64_t to_integer(const Value& v, std::string_view path, const Range& range) {
  const std::string expected = expected_number("an integer", range);
  if (!v.is_scalar() || v.quoted) wrong_type(v, path, expected);
  std::int64_t x = 0;
  const char* first = v.scalar.data();
  const char* last = first + v.scalar.size();
  if (first != last && *first == '+') ++first;
  const auto [end, error] = std::from_chars(first, last, x);
  if (error != std::errc{} || end != last || !in_range(static_cast<double>(x), range))
    wrong_type(v, path, expected);
  return x;
}

double to_number(const Value& v, std::string_view path, const Range& range) {
  const std::string expected = expected_number("a number", range);
  if (!v.is_scalar() || v.quoted) wrong_type(v, path, expected);
  double x = 0;
  const char* first = v.scalar.data();
  const char* last = first + v.scalar.size();
  if (first != last && *first == '+') ++first;
  const auto [end, error] = std::from_chars(first, last, x);
  if (error != std::errc{} || end != last || !std::isfinite(x) || !in_range(x, range))
    wrong_type(v, path, expected);
  if (std::abs(x) > static_cast<double>(std::numeric_limits<float>::max()))
    fail(v.origin, path, fmt::format("{} is beyond float32's largest number, 3.4e38", v.scalar));
  return x;
}

std::string to_string(const Value& v, std::string_view path, Environment environment) {
  if (!v.is_scalar()) wrong_type(v, path, "a string");
  return environment == Environment::expand ? expand_environment(v, path) : v.scalar;
}

// ---- Reader

Reader::Reader(const Value& value, std::string path, Environment environment)
    : value_(value), path_(std::move(path)), environment_(environment) {
  if (!value.is_map() && !value.is_null()) wrong_type(value, path_, "a map");
}

std::string Reader::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

const Value* Reader::take(const char* key) {
  known_.emplace_back(key);
  const bool required = std::exchange(required_, false);
  const Value* v = value_.find(key);
  if (v == nullptr && required && !missing_)
    missing_ = {.key = key,
                .path = path_.empty() ? key : path_,
                .message = path_.empty() ? "is missing; it must be given"
                                         : fmt::format("the key '{}' is missing; it must be given", key),
                .origin = value_.origin};
  return v;
}

const Value* Reader::take_known(const char* key) {
  const Value* v = take(key);
  return v != nullptr && environment_ == Environment::if_set && names_environment(*v) ? nullptr : v;
}

void Reader::field(const char* key, bool& value, const char*) {
  if (const Value* v = take_known(key)) value = to_bool(*v, path_of(key));
}
void Reader::field(const char* key, std::int64_t& value, const char*, Range range) {
  if (const Value* v = take_known(key)) value = to_integer(*v, path_of(key), range);
}
void Reader::field(const char* key, double& value, const char*, Range range) {
  if (const Value* v = take_known(key)) value = to_number(*v, path_of(key), range);
}
void Reader::field(const char* key, std::string& value, const char*) {
  if (const Value* v = take(key)) value = to_string(*v, path_of(key), environment_);
}
void Reader::field(const char* key, std::vector<std::string>& value, const char*) {
  if (const Value* v = take(key))
    value = to_list<std::string>(
        *v, path_of(key), "words",
        [this](const Value& item, const std::string& path) { return to_string(item, path, environment_); });
}
void Reader::field(const char* key, std::vector<double>& value, const char*) {
  if (const Value* v = take(key))
    value = to_list<double>(*v, path_of(key), "numbers",
                            [](const Value& item, const std::string& path) { return to_number(item, path); });
}
void Reader::field(const char* key, std::vector<std::int64_t>& value, const char*, Range range) {
  if (const Value* v = take(key))
    value = to_list<std::int64_t>(
        *v, path_of(key), "integers",
        [&](const Value& item, const std::string& path) { return to_integer(item, path, range); });
}

void Reader::choice(const char* key, std::size_t& index, std::span<const char* const> names, const char*) {
  const Value* v = take_known(key);
  if (!v) {
    if (missing_ && missing_->key == key) missing_->decides = true;
    return;
  }
  const std::string path = path_of(key);
  if (!v->is_scalar()) wrong_type(*v, path, fmt::format("one of {}", fmt::join(names, ", ")));
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (v->scalar == names[i]) {
      index = i;
      return;
    }
  }
  const std::vector<std::string> candidates(names.begin(), names.end());
  const bool number = v->scalar.find_first_not_of("0123456789") == std::string::npos;  // not a misspelling
  fail(v->origin, path,
       fmt::format("'{}' is not known{}; allowed: {}", v->scalar,
                   number ? "" : did_you_mean(v->scalar, candidates), fmt::join(names, ", ")));
}

void Reader::custom(const char* key, const char*, const char*,
                    const std::function<void(const Value&, const std::string&)>& parse,
                    const std::function<Value()>&) {
  if (const Value* v = take_known(key)) parse(*v, path_of(key));
}

void Reader::section(const char* key, const char*, const std::function<void(Visitor&)>& body) {
  const Value* v = take(key);
  Value absent;
  absent.origin = value_.origin;
  Reader inner(v ? *v : absent, path_of(key), environment_);
  body(inner);
  if (v != nullptr || !inner.missing_) return inner.finish();
  if (missing_) return;
  missing_ = std::move(inner.missing_);  // unless the section is here under a name that is not its own
  missing_->key = key;
  missing_->decides = false;
}

void Reader::refuse(const Value::Entry& unknown) const {
  try {
    fail(unknown.origin, path_of(unknown.key),
         fmt::format("unknown key{}; allowed here: {}", did_you_mean(unknown.key, known_),
                     fmt::join(known_, ", ")));
  } catch (const ConfigError& e) {
    throw UnknownKeyError(e.what(), unknown.key);
  }
}

void Reader::finish() {
  std::vector<const Value::Entry*> unknown;
  for (const Value::Entry& e : value_.entries)
    if (std::find(known_.begin(), known_.end(), e.key) == known_.end()) unknown.push_back(&e);
  if (!missing_) {
    if (!unknown.empty()) refuse(*unknown[0]);
    return;
  }
  for (const Value::Entry* e : unknown)
    if (!missing_->decides || nearest(e->key, std::vector{missing_->key})) refuse(*e);
  fail(missing_->origin, missing_->path, missing_->message);
}

// ---- Writer

void Writer::field(const char* key, bool& value, const char*) {
  value_.set(key, Value::plain(value ? "true" : "false"));
}
void Writer::field(const char* key, std::int64_t& value, const char*, Range) {
  value_.set(key, Value::plain(fmt::format("{}", value)));
}
void Writer::field(const char* key, double& value, const char*, Range) {
  value_.set(key, Value::plain(number_text(value)));
}
void Writer::field(const char* key, std::string& value, const char*) {
  value_.set(key, Value::string(value));
}
void Writer::field(const char* key, std::vector<std::string>& value, const char*) {
  Value list = Value::sequence();
  for (const std::string& s : value) list.items.push_back(Value::string(s));
  value_.set(key, std::move(list));
}
void Writer::field(const char* key, std::vector<double>& value, const char*) {
  Value list = Value::sequence();
  for (const double x : value) list.items.push_back(Value::plain(number_text(x)));
  value_.set(key, std::move(list));
}
void Writer::field(const char* key, std::vector<std::int64_t>& value, const char*, Range) {
  Value list = Value::sequence();
  for (const std::int64_t x : value) list.items.push_back(Value::plain(fmt::format("{}", x)));
  value_.set(key, std::move(list));
}
void Writer::choice(const char* key, std::size_t& index, std::span<const char* const> names, const char*) {
  value_.set(key, Value::plain(names[index]));
}
void Writer::custom(const char* key, const char*, const char*,
                    const std::function<void(const Value&, const std::string&)>&,
                    const std::function<Value()>& write) {
  Value v = write();
  if (!v.is_null()) value_.set(key, std::move(v));
}
void Writer::section(const char* key, const char*, const std::function<void(Visitor&)>& body) {
  Writer inner;
  body(inner);
  value_.set(key, inner.take());
}

}  // namespace lpsgd::config
