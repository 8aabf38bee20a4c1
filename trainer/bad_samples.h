// Samples that could not be read and were skipped (`data.on_bad_sample: skip`).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lpsgd {

struct BadSamples {
  std::int64_t count = 0;
  std::vector<std::string> first;  // the errors of a few

  void add(std::span<const std::string> errors);
  BadSamples& operator+=(const BadSamples& more);
};

/// "5 samples could not be read: a.jpg: truncated; b.jpg: ...; ..."
std::string text(const BadSamples& bad);

}  // namespace lpsgd
