#include "data/tiff_tags.h"

#include <cstring>

namespace lpsgd {

namespace {

constexpr std::size_t entry_bytes = 12;  // tag (2), type (2), count (4), value or its offset (4)

std::size_t type_bytes(std::uint32_t type) {
  if (type == 1) return 1;   // BYTE
  if (type == 3) return 2;   // SHORT
  return type == 4 ? 4 : 0;  // LONG
}

}  // namespace

TiffTags::TiffTags(std::span<const std::uint8_t> bytes) : bytes_(bytes) {
  if (bytes.size() < 8) return;
  big_endian_ = bytes[0] == 'M';
  if (bytes[0] != bytes[1] || (!big_endian_ && bytes[0] != 'I') || number(2, 2) != 42) return;
  const std::size_t directory = number(4, 4);
  if (directory > bytes.size() - 2) return;
  first_ = directory + 2;
  count_ = number(directory, 2);
  valid_ = count_ <= (bytes.size() - first_) / entry_bytes;
}

std::uint32_t TiffTags::number(std::size_t at, std::size_t bytes) const {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < bytes; ++i) value = value << 8 | bytes_[at + (big_endian_ ? i : bytes - 1 - i)];
  return value;
}

std::optional<std::size_t> TiffTags::entry(std::uint16_t tag) const {
  for (std::size_t i = 0; valid_ && i < count_; ++i) {
    const std::size_t at = first_ + i * entry_bytes;
    if (number(at, 2) == tag) return at;
  }
  return {};
}

std::optional<std::uint32_t> TiffTags::find(std::uint16_t tag) const {
  const std::optional<std::size_t> at = entry(tag);
  if (!at) return {};
  const std::size_t bytes = type_bytes(number(*at + 2, 2)), count = number(*at + 4, 4);
  if (bytes == 0 || count == 0) return {};
  if (bytes * count <= 4) return number(*at + 8, bytes);
  const std::size_t offset = number(*at + 8, 4);
  if (offset > bytes_.size() || bytes > bytes_.size() - offset) return {};
  return number(offset, bytes);
}

int orientation_tag(std::span<const std::uint8_t> exif) {
  constexpr std::uint16_t orientation = 274;
  const std::uint32_t value = TiffTags(exif).find(orientation).value_or(1);
  return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
}

int exif_orientation(std::span<const std::uint8_t> app1) {
  constexpr char magic[] = "Exif\0";  // and the literal's own 0
  if (app1.size() < sizeof magic || std::memcmp(app1.data(), magic, sizeof magic) != 0) return 1;
  return orientation_tag(app1.subspan(sizeof magic));
}

}  // namespace lpsgd
