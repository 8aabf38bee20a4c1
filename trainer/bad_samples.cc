#include "trainer/bad_samples.h"

#include <fmt/format.h>

namespace lpsgd {

void BadSamples::add(std::span<const std::string> errors) {
  constexpr std::size_t named = 3;
  count += static_cast<std::int64_t>(errors.size());
  for (const std::string& error : errors)
    if (first.size() < named) first.push_back(error);
}

BadSamples& BadSamples::operator+=(const BadSamples& more) {
  add(more.first);
  count += more.count - static_cast<std::int64_t>(more.first.size());
  return *this;
}

std::string text(const BadSamples& bad) {
  return fmt::format("{} sample{} could not be read: {}{}", bad.count, bad.count == 1 ? "" : "s",
                     fmt::join(bad.first, "; "),
                     bad.count > static_cast<std::int64_t>(bad.first.size()) ? "; ..." : "");
}

}  // namespace lpsgd
