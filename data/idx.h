// The IDX format of MNIST (LeCun, Cortes, Burges, "The MNIST database of handwritten digits"): two zero
// bytes, the type of the values, the number of dimensions, each dimension as a big-endian 32-bit integer,
// values.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/buffer.h"

namespace lpsgd {

/// Reads an IDX file of bytes, plain or gzip, whichever its content is. `shape` is what the dimensions must
/// be after the first. Returns the values, of which there are a multiple of the product of `shape`. Throws
/// FileError, which begins with the path: the file is missing, truncated or damaged, has another type or
/// shape
/// (`what` says what is expected), holds nothing or more than it says.
Buffer<std::uint8_t> read_idx(const std::string& path, std::span<const std::int64_t> shape, const char* what);

}  // namespace lpsgd
