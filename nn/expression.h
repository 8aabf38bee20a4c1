// Expressions in network files: "$n", "2 * $width", "$stride != 1 or not $norm". Values are integers, true or
// false, and words. Operators, from loose to tight: A if C else B, or, and, not, == != < <= > >=, + -, * / %,
// unary -; division rounds towards zero and must come out even.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "core/config.h"

namespace lpsgd {

/// Named parameters, the inner scope first. Values are scalars (null: must be given by the caller).
class ParameterScope {
 public:
  explicit ParameterScope(const ParameterScope* outer = nullptr) : outer_(outer) {}
  void set(const std::string& name, config::Value value) { values_[name] = std::move(value); }
  const config::Value* find(const std::string& name) const;
  std::vector<std::string> names() const;

 private:
  const ParameterScope* outer_;
  std::map<std::string, config::Value> values_;
};

/// `value` with every unquoted scalar that holds a '$' replaced by what it evaluates to. ConfigError at its
/// place; `path` names it.
config::Value substitute(const config::Value& value, const ParameterScope& scope, const std::string& path);

/// The text that one expression evaluates to: an integer, true, false or a word.
std::string evaluate(const std::string& text, const ParameterScope& scope, const config::Origin& origin,
                     const std::string& path);

}  // namespace lpsgd
