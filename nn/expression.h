// Expressions in network files: "$n", "2 * $width", "$stride != 1 or not $norm". Values are integers, true,
// false, decimal numbers and words. Of decimal numbers and words there are only ==, !=, the choice, and the
// unary - of a number. The operators, from the lowest precedence to the highest, are: A if C else B, or, and,
// not, == != < <= > >=, + -, * / %, unary -. A division must have no remainder.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "core/config.h"

namespace lpsgd {

/// Named parameters. A name is looked up in this scope first, then in the outer one. Values are scalars.
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

/// A copy of `value` in which every unquoted scalar with a '$' is replaced by its result. Throws ConfigError
/// with the position of the scalar; `path` names it.
config::Value substitute(const config::Value& value, const ParameterScope& scope, const std::string& path);

/// The result of one expression as text: an integer, true, false or a word. Throws ConfigError.
std::string evaluate(const std::string& text, const ParameterScope& scope, const config::Origin& origin,
                     const std::string& path);

}  // namespace lpsgd
