// Numbers from the first directory of a TIFF file. EXIF data have the same layout.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace lpsgd {

/// Reads the tags of the first directory, where they hold numbers of 8, 16 or 32 bits.
class TiffTags {
 public:
  /// `bytes` begin with the byte order ("II" or "MM"). They must stay valid.
  explicit TiffTags(std::span<const std::uint8_t> bytes);
  /// Whether the header and the directory are complete.
  bool valid() const { return valid_; }
  /// Whether the directory has the tag, of whatever type.
  bool has(std::uint16_t tag) const { return entry(tag).has_value(); }
  /// The first value of a tag; nothing: it is absent or no such number.
  std::optional<std::uint32_t> find(std::uint16_t tag) const;

 private:
  std::optional<std::size_t> entry(std::uint16_t tag) const;  // where the tag's first entry begins
  std::uint32_t number(std::size_t at, std::size_t bytes) const;

  std::span<const std::uint8_t> bytes_;
  bool big_endian_ = false, valid_ = false;
  std::size_t first_ = 0, count_ = 0;  // the directory's entries
};

/// The orientation in EXIF's data, which are laid out as a TIFF file, 1 to 8. 1 (upright) if they have none
/// or an impossible one.
int orientation_tag(std::span<const std::uint8_t> exif);
/// The same from a JPEG file's APP1 segment.
int exif_orientation(std::span<const std::uint8_t> app1);

}  // namespace lpsgd
