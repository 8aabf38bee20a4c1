// Headerless recordings: 16 bit samples, in either byte order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lpsgd {

/// `automatic`: the order in which the samples are smoother.
enum class ByteOrder : std::uint8_t { automatic, little, big };

/// The sum of the differences between neighbouring samples, without signs. Speech read in the wrong order is
/// far rougher: its low bytes, which are nearly random, become the high ones.
std::int64_t roughness(std::string_view bytes, ByteOrder order);

/// The samples in `bytes`; `order` is little or big. FileError, which begins with `name`, if the number of
/// bytes is odd.
std::vector<std::int16_t> decode_samples(std::string_view bytes, const std::string& name, ByteOrder order);

}  // namespace lpsgd
