#include "data/speech/alignment.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "core/error.h"
#include "data/text_lines.h"

namespace lpsgd {

namespace {

constexpr std::int64_t frame = 100'000;  // of HTK's time units

std::optional<std::int64_t> number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// A time in frames, rounded.
std::optional<std::int64_t> frames(std::string_view text) {
  const auto time = number(text);
  if (!time || *time < 0) return std::nullopt;
  return *time / frame + (*time % frame >= frame / 2 ? 1 : 0);
}

/// "An4/71/71/cen5-fjam-b.lab" -> "cen5-fjam-b"
std::string_view stem(std::string_view path) {
  path = path.substr(path.rfind('/') + 1);
  return path.substr(0, path.rfind('.'));
}

class AlignmentReader {
 public:
  AlignmentReader(std::string_view text, const std::string& name, const StateList& states)
      : lines_(text), name_(name), states_(states) {}

  std::unordered_map<std::string, Alignment> read() {
    if (lines_.next().value_or("") != "#!MLF!#") fail("no master label file: the first line is not #!MLF!#");
    std::unordered_map<std::string, Alignment> all;
    while (const auto line = lines_.next()) {
      if (line->empty()) continue;
      if (line->size() < 3 || line->front() != '"' || line->back() != '"')
        fail("expected the quoted name of a label file");
      const std::string key(stem(line->substr(1, line->size() - 2)));
      const auto [at, is_new] = all.try_emplace(key);
      if (!is_new) fail(fmt::format("a second alignment of '{}'", key));
      at->second = alignment(key);
    }
    return all;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw FileError(fmt::format("{}:{}: {}", name_, lines_.number(), what));
  }

  Alignment alignment(const std::string& key) {
    Alignment out;
    out.line = lines_.number();
    while (const auto line = lines_.next()) {
      if (*line == ".") return out;
      out.segments.push_back(segment(*line, out.frames()));
    }
    fail(fmt::format("truncated: the alignment of '{}' does not end with a line of one dot", key));
  }

  Alignment::Segment segment(std::string_view line, std::int64_t expected_begin) const {
    const auto begin = frames(next_word(line)), end = frames(next_word(line));
    const std::string state(next_word(line));
    if (!begin || !end || state.empty()) fail("expected a begin, an end (in units of 100 ns) and a state");
    if (*begin != expected_begin)
      fail(fmt::format("the segment begins at frame {}, the one before ended at {}", *begin, expected_begin));
    if (*end <= *begin) fail(fmt::format("the segment from frame {} to {} holds no frame", *begin, *end));
    const std::int32_t found = states_.find(state);
    if (found < 0) fail(fmt::format("state '{}' is not in the list of states", state));
    return {*end, found};
  }

  TextLines lines_;
  const std::string& name_;
  const StateList& states_;
};

}  // namespace

StateList::StateList(std::string_view text, const std::string& name) {
  TextLines lines(text);
  while (const auto line = lines.next()) {
    std::string_view rest = *line;
    const std::string state(next_word(rest));
    if (state.empty()) continue;
    if (!numbers_.try_emplace(state, static_cast<std::int32_t>(numbers_.size())).second)
      throw FileError(fmt::format("{}:{}: state '{}' a second time", name, lines.number(), state));
  }
  if (numbers_.empty()) throw FileError(fmt::format("{}: holds no state", name));
}

std::int32_t StateList::find(const std::string& state) const {
  const auto at = numbers_.find(state);
  return at == numbers_.end() ? -1 : at->second;
}

std::unordered_map<std::string, Alignment> read_alignments(std::string_view text, const std::string& name,
                                                           const StateList& states) {
  return AlignmentReader(text, name, states).read();
}

}  // namespace lpsgd
