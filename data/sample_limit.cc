#include "data/sample_limit.h"

#include <fmt/core.h>

#include "core/error.h"

namespace lpsgd {

std::int64_t sample_limit(const DataOptions& options, Split split, std::int64_t available,
                          const std::string& where) {
  const std::int64_t wanted = split == Split::train ? options.train_samples : options.test_samples;
  if (wanted > available)
    throw ConfigError(fmt::format("data.{}: {} wanted, but {} holds {}",
                                  split == Split::train ? "train_samples" : "test_samples", wanted, where,
                                  available));
  return wanted > 0 ? wanted : available;
}

}  // namespace lpsgd
