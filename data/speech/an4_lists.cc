#include "data/speech/an4_lists.h"

#include <fmt/format.h>

#include <filesystem>
#include <set>

#include "data/text_lines.h"

namespace lpsgd {

std::vector<ListedRecording> read_recording_list(std::string_view text, const std::string& path,
                                                 FileErrors& errors) {
  std::vector<ListedRecording> out;
  std::set<std::string> names;
  TextLines lines(text);
  while (const auto line = lines.next()) {
    std::string_view rest = *line;
    const std::filesystem::path id(next_word(rest));
    if (id.empty()) continue;
    ListedRecording recording{id.parent_path().string(), id.filename().string(), lines.number()};
    if (recording.name.empty() || id.native().find('\0') != std::string::npos)
      errors.add(fmt::format("{}:{}: expected a recording's path without suffix", path, lines.number()));
    else if (!names.insert(recording.name).second)
      errors.add(fmt::format("{}:{}: '{}' a second time", path, lines.number(), recording.name));
    else
      out.push_back(std::move(recording));
  }
  return out;
}

std::vector<ListedRecording> read_transcripts(std::string_view text, const std::string& path,
                                              FileErrors& errors) {
  std::vector<ListedRecording> out;
  TextLines lines(text);
  while (const auto line = lines.next()) {
    if (line->empty()) continue;
    const std::size_t begin = line->rfind('('), end = line->rfind(')');
    if (begin == std::string_view::npos || end == std::string_view::npos || end < begin)
      errors.add(fmt::format("{}:{}: the transcript does not end with its recording's name in parentheses",
                             path, lines.number()));
    else
      out.push_back({"", std::string(line->substr(begin + 1, end - begin - 1)), lines.number()});
  }
  return out;
}

}  // namespace lpsgd
