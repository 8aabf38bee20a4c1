// Fields that are a number with a unit, such as "1Gbit" or "50us".
#pragma once

#include <span>
#include <string>

#include "core/config.h"

namespace lpsgd::config {

struct Unit {
  const char* name;
  double factor;
};

/// Declares the field. `units`, in descending order, are those it takes; with `zero_is_none` a value of 0 is
/// written as none.
void quantity(Visitor& visitor, const char* key, double& value, const char* help, std::span<const Unit> units,
              const char* example, bool zero_is_none);

/// In the largest unit that leaves at least 1: "1.5Gbit".
std::string quantity_text(double value, std::span<const Unit> units);

}  // namespace lpsgd::config
