// The keys train_samples and test_samples, for data sets with files.
#pragma once

#include <cstdint>
#include <string>

#include "data/dataset.h"

namespace lpsgd {

/// How many of the `available` samples of a split to use. ConfigError, which says that `where` holds no more,
/// if the option asks for more.
std::int64_t sample_limit(const DataOptions& options, Split split, std::int64_t available,
                          const std::string& where);

/// The sample that is used in place `i` of `limit`, where `limit` of `available` samples are used, evenly
/// spaced.
inline std::int64_t evenly_spaced(std::int64_t i, std::int64_t limit, std::int64_t available) {
  return i * available / limit;
}

}  // namespace lpsgd
