// Text files, line by line.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace lpsgd {

/// The lines of a text. A line ends with "\n" or "\r\n", which do not belong to it; the last may lack them.
class TextLines {
 public:
  explicit TextLines(std::string_view text) : rest_(text) {}
  /// The next line, or nothing at the end.
  std::optional<std::string_view> next() {
    if (rest_.empty()) return std::nullopt;
    const std::size_t end = rest_.find('\n');
    std::string_view line = rest_.substr(0, end);
    rest_ = end == std::string_view::npos ? std::string_view() : rest_.substr(end + 1);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    ++number_;
    return line;
  }
  /// The number of the last line that next() returned, from 1.
  std::size_t number() const { return number_; }

 private:
  std::string_view rest_;
  std::size_t number_ = 0;
};

/// Cuts the next word off the text: a run of bytes that are neither space nor tab. Empty if there is none.
inline std::string_view next_word(std::string_view& text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return text = {};
  const std::size_t end = text.find_first_of(" \t", begin);
  const std::string_view word = text.substr(begin, end - begin);
  text = end == std::string_view::npos ? std::string_view() : text.substr(end);
  return word;
}

}  // namespace lpsgd
