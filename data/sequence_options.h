// The options of data sets of sequences: keys `speech` and `text` of section `data`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config.h"
#include "data/speech/audio.h"
#include "data/speech/features.h"

namespace lpsgd {

struct SpeechOptions {
  SpeechFeatures features = SpeechFeatures::cepstral;
  std::int64_t context = 5;  // frames on either side
  ByteOrder byte_order = ByteOrder::automatic;
  std::string alignment = "cntk/glob_0000.mlf", states = "cntk/state.list";  // in the data set's folder
  /// Recordings, or speakers with all theirs, that are not trained on. Of AN4 these are the first four
  /// speakers, by name, who have twelve training recordings: two women and two men, 48 recordings.
  std::vector<std::string> held_out{"flmm2", "fwxs", "mcel", "mjdr"};
};

enum class TextUnit : std::uint8_t { words, characters };
enum class TextSplit : std::uint8_t { valid, test };

struct TextOptions {
  TextUnit unit = TextUnit::words;
  std::string train, valid, test;    // files in the data set's folder
  std::string vocabulary;            // a file there; empty: the tokens of the training text
  std::int64_t vocabulary_size = 0;  // the most frequent tokens of the training text; 0: all
  std::string eos = "<eos>", unknown = "<unk>";
  TextSplit evaluate = TextSplit::valid;
};

void fields(config::Visitor& visitor, SpeechOptions& options);  // section `data.speech`
void fields(config::Visitor& visitor, TextOptions& options);    // section `data.text`

}  // namespace lpsgd
