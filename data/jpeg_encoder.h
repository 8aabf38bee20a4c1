// Writes JPEG files: baseline, Huffman-coded, colour at half the resolution in both directions (4:2:0).
#pragma once

#include <cstdint>
#include <vector>

#include "data/decoded.h"

namespace lpsgd {

/// Encodes pixels of 1 or 3 channels at a quality from 1 to 100 into `out`, replacing its content. Error if
/// libjpeg fails.
void encode_jpeg(const Pixels& pixels, int quality, std::vector<std::uint8_t>& out);

}  // namespace lpsgd
