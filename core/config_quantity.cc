#include "core/config_quantity.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <string_view>
#include <vector>

#include "core/config_shape.h"

namespace lpsgd::config {

namespace {

/// A number that is not negative, followed by one of the units.
double parse_quantity(const Value& value, const std::string& path, std::span<const Unit> units,
                      const char* example) {
  const std::string& text = value.scalar;
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (value.is_scalar() && error == std::errc() && number >= 0 && number <= 1e15) {
    std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
    while (rest.starts_with(' ')) rest.remove_prefix(1);
    for (const Unit& unit : units)
      if (rest == unit.name) return number * unit.factor;
  }
  std::vector<std::string> names;
  for (const Unit& unit : units) names.emplace_back(unit.name);
  fail(value.origin, path,
       fmt::format("expected a number and a unit, such as {}; units: {}", example, fmt::join(names, ", ")));
}

Shape quantity_shape(std::span<const Unit> units) {
  std::string names;
  for (const Unit& unit : units) names += fmt::format("{}{}", names.empty() ? "" : "|", unit.name);
  return Shape::text(fmt::format("^[0-9.]+(e[+-]?[0-9]+)? *({})$", names));
}

}  // namespace

void quantity(Visitor& v, const char* key, double& value, const char* help, std::span<const Unit> units,
              const char* example, bool zero_is_none) {
  const std::string type = fmt::format("number with a unit, such as {}", example);
  v.shape([units] { return quantity_shape(units); });
  v.custom(
      key, type.c_str(), help,
      [&value, units, example](const Value& given, const std::string& path) {
        value = parse_quantity(given, path, units, example);
      },
      [&value, units, zero_is_none] {
        return value > 0 || !zero_is_none ? Value::plain(quantity_text(value, units)) : Value();
      });
}

std::string quantity_text(double value, std::span<const Unit> units) {
  auto unit = std::find_if(units.begin(), units.end(), [&](const Unit& u) { return value >= u.factor; });
  if (unit == units.end()) unit = std::prev(units.end());
  return fmt::format("{:.9g}{}", value / unit->factor, unit->name);
}

}  // namespace lpsgd::config
