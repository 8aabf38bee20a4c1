// The lists of AN4: its recordings and their transcripts.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "data/file_errors.h"

namespace lpsgd {

/// A recording that a line of a list names.
struct ListedRecording {
  std::string folder, name;  // "an4_clstk/fash", "an251-fash-b"
  std::size_t line = 0;      // from 1
};

/// A list of recordings: a path without suffix at the start of each line. Empty lines count for nothing.
/// `path` is for messages. Lines without a name, and names that were there before, are left out and added to
/// `errors`.
std::vector<ListedRecording> read_recording_list(std::string_view text, const std::string& path,
                                                 FileErrors& errors);

/// The recordings of the transcripts, of which a line ends with its recording's name: "<s> YES </s>
/// (an251-fash-b)". Lines that do not are added to `errors`. Folders are empty.
std::vector<ListedRecording> read_transcripts(std::string_view text, const std::string& path,
                                              FileErrors& errors);

}  // namespace lpsgd
