// Frame alignments of speech: which state of which sound each frame belongs to.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lpsgd {

/// The names of the states, one a line; a state's number is its line's, from 0.
class StateList {
 public:
  /// `name` is the file's, for messages. FileError if there is no state, or one twice.
  StateList(std::string_view text, const std::string& name);
  std::int64_t size() const { return static_cast<std::int64_t>(numbers_.size()); }
  /// The state's number, or -1.
  std::int32_t find(const std::string& state) const;

 private:
  std::unordered_map<std::string, std::int32_t> numbers_;
};

/// An utterance's frames, cut into segments of one state each.
struct Alignment {
  struct Segment {
    std::int64_t end;  // the frame after the last
    std::int32_t state;
  };
  std::vector<Segment> segments;  // in order; the first begins at frame 0
  std::size_t line = 0;           // where the alignment begins in its file

  std::int64_t frames() const { return segments.empty() ? 0 : segments.back().end; }
};

/// Reads a master label file of HTK (Young et al., "The HTK Book", section 6.3): a line "#!MLF!#"; then for
/// each utterance its label file's name in quotes, a line "begin end state ..." for each segment, with times
/// in units of 100 ns, and a line with one dot. A frame is 10 ms; times are rounded to whole frames, because
/// some are off by a unit. The alignments are found by the label file's name without folder and extension.
/// FileError, which names file and line, if a line is malformed, if a segment does not begin where the one
/// before ended or has no frame, if a state is not in the list, if an utterance occurs twice, or if the last
/// dot is missing.
std::unordered_map<std::string, Alignment> read_alignments(std::string_view text, const std::string& name,
                                                           const StateList& states);

}  // namespace lpsgd
