#include "data/tar.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>

#include "core/error.h"

namespace lpsgd {

namespace {

constexpr std::uint64_t block = 512;
constexpr std::uint64_t longest_record = 1 << 20;  // of extended headers; names are far shorter
using Header = std::array<std::uint8_t, block>;

/// A text field, which ends at its first zero byte.
std::string text_field(const Header& header, std::size_t at, std::size_t size) {
  const auto* first = header.data() + at;
  return {first, std::find(first, first + size, std::uint8_t{0})};
}

/// A number: octal digits, or base 256 if the first bit is set (GNU's, for 8 GiB and more).
std::optional<std::uint64_t> number_field(const Header& header, std::size_t at, std::size_t size) {
  std::uint64_t value = 0;
  if (header[at] & 0x80) {
    for (std::size_t i = 0; i < size; ++i) {
      if (value >> 55) return std::nullopt;
      value = value << 8 | (i == 0 ? header[at] & 0x7fu : header[at + i]);
    }
    return value;
  }
  std::size_t i = 0;
  while (i < size && header[at + i] == ' ') ++i;
  for (; i < size && header[at + i] != ' ' && header[at + i] != 0; ++i) {
    if (header[at + i] < '0' || header[at + i] > '7') return std::nullopt;
    value = value << 3 | (header[at + i] - std::uint64_t{'0'});
  }
  return value;
}

/// The sum of the header's bytes, the sum's own field counted as spaces.
bool has_right_sum(const Header& header) {
  std::uint64_t sum = 8 * std::uint64_t{' '};
  for (std::size_t i = 0; i < block; ++i)
    if (i < 148 || i >= 156) sum += header[i];
  return number_field(header, 148, 8) == sum;
}

/// What extended headers say of the next member.
struct Extended {
  std::string name;
  std::optional<std::uint64_t> size;
};

class TarReader {
 public:
  TarReader(const InputFile& file, std::uint64_t begin, std::uint64_t size, const std::string& name)
      : file_(file), name_(name), begin_(begin), at_(begin), end_(begin + size) {}

  std::vector<TarMember> read() {
    std::vector<TarMember> members;
    Header header;
    Extended extended;
    while (next_header(header)) {
      const char type = static_cast<char>(header[156]);
      const bool is_file = type == '0' || type == 0 || type == '7';
      const std::uint64_t size = is_file && extended.size ? *extended.size : size_of(header);
      // Links and folders have no data, whatever their size says.
      const bool has_data = type < '1' || type > '6';
      if (has_data && size > end_ - at_)
        fail(fmt::format("truncated: a member of {} bytes begins at byte {}, but {} are left", size,
                         at_ - begin_, end_ - at_));
      if (type == 'L' || type == 'x') {
        extend(extended, type, size);
      } else if (type == 'S') {
        fail_sparse();
      } else if (type != 'K' && type != 'g') {
        if (is_file && !is_folder(name_of(header, extended)))
          members.push_back({name_of(header, extended), at_, size});
        extended = {};
      }
      if (has_data) at_ += std::min(end_ - at_, (size + block - 1) / block * block);
    }
    return members;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw FileError(fmt::format("{}: {}", name_, what));
  }

  [[noreturn]] void fail_sparse() const {
    fail(fmt::format("the member at byte {} is a sparse file, which cannot be read in place",
                     at_ - begin_ - block));
  }

  /// Reads the header at `at_` and moves behind it; false at the end of the archive, a block of zeros.
  bool next_header(Header& header) {
    if (at_ == begin_ && end_ == begin_) fail("empty, expected a tar archive");
    if (end_ - at_ < block)
      fail(fmt::format("{}: it ends at byte {} without an end mark",
                       at_ == begin_ ? "no tar archive, or truncated" : "truncated", end_ - begin_));
    file_.read(at_, header);
    if (std::all_of(header.begin(), header.end(), [](std::uint8_t b) { return b == 0; })) return false;
    if (!has_right_sum(header))
      fail(fmt::format("{}: byte {} begins no valid header",
                       at_ == begin_ ? "no tar archive" : "malformed tar archive", at_ - begin_));
    at_ += block;
    return true;
  }

  std::uint64_t size_of(const Header& header) const {
    const auto size = number_field(header, 124, 12);
    if (!size)
      fail(fmt::format("malformed tar archive: no size in the header at byte {}", at_ - begin_ - block));
    return *size;
  }

  static std::string name_of(const Header& header, const Extended& extended) {
    if (!extended.name.empty()) return extended.name;
    const std::string name = text_field(header, 0, 100);
    const bool is_posix = std::string_view(reinterpret_cast<const char*>(header.data()) + 257, 6) ==
                          std::string_view("ustar\0", 6);
    const std::string prefix = is_posix ? text_field(header, 345, 155) : "";
    return prefix.empty() ? name : prefix + "/" + name;
  }
  static bool is_folder(const std::string& name) { return name.ends_with('/'); }  // V7's have no type

  void extend(Extended& extended, char type, std::uint64_t size) const {
    if (size > longest_record)
      fail(fmt::format("malformed tar archive: an extended header of {} bytes at byte {}", size,
                       at_ - begin_ - block));
    std::string text(size, '\0');
    file_.read(at_, {reinterpret_cast<std::uint8_t*>(text.data()), text.size()});
    if (type == 'L')
      extended.name = text.substr(0, text.find('\0'));
    else
      pax(extended, text);
  }

  /// Records "LENGTH KEY=VALUE\n", of which LENGTH counts all bytes.
  void pax(Extended& extended, std::string_view text) const {
    while (!text.empty()) {
      std::size_t length = 0;
      const auto [rest, no_length] = std::from_chars(text.data(), text.data() + text.size(), length);
      const auto digits = static_cast<std::size_t>(rest - text.data());
      const std::size_t equals = text.substr(0, length).find('=');
      if (no_length != std::errc() || length > text.size() || length < digits + 3 || text[digits] != ' ' ||
          text[length - 1] != '\n' || equals == std::string_view::npos)
        fail(fmt::format("malformed tar archive: a pax record in the header at byte {}",
                         at_ - begin_ - block));
      const std::string_view key = text.substr(digits + 1, equals - digits - 1);
      const std::string_view value = text.substr(equals + 1, length - equals - 2);
      if (key.starts_with("GNU.sparse.")) fail_sparse();
      if (key == "path") extended.name = value;
      if (key == "size") {
        std::uint64_t size = 0;
        const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), size);
        if (error != std::errc() || end != value.data() + value.size())
          fail(fmt::format("malformed tar archive: size '{}' in the header at byte {}", value,
                           at_ - begin_ - block));
        extended.size = size;
      }
      text.remove_prefix(length);
    }
  }

  const InputFile& file_;
  const std::string& name_;
  const std::uint64_t begin_;
  std::uint64_t at_, end_;
};

}  // namespace

std::vector<TarMember> read_tar_index(const InputFile& file, std::uint64_t begin, std::uint64_t size,
                                      const std::string& name) {
  return TarReader(file, begin, size, name).read();
}

std::vector<TarMember> read_tar_index(const InputFile& file) {
  return read_tar_index(file, 0, file.size(), file.path());
}

}  // namespace lpsgd
