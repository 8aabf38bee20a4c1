// Parsers of speech and text data. The first byte picks one; whatever the rest, it is read or refused.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <string_view>

#include "core/error.h"
#include "data/speech/alignment.h"
#include "data/speech/an4_lists.h"
#include "data/speech/audio.h"
#include "data/speech/features.h"
#include "data/text.h"

using namespace lpsgd;

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

void fuzz_alignment(std::string_view text) {
  const StateList states("a_2\na_3\nsil", "states");
  for (const auto& [name, alignment] : read_alignments(text, "mlf", states)) {
    std::int64_t end = 0;
    for (const Alignment::Segment& segment : alignment.segments) {
      check(segment.end > end && segment.state >= 0 && segment.state < states.size());
      end = segment.end;
    }
    check(end == alignment.frames());
  }
}

void fuzz_lists(std::string_view text) {
  FileErrors errors;
  const std::size_t lines = static_cast<std::size_t>(std::ranges::count(text, '\n')) + 1;
  std::set<std::string> names;
  for (const ListedRecording& recording : read_recording_list(text, "list", errors)) {
    check(!recording.name.empty() && names.insert(recording.name).second);
    check((recording.folder + recording.name).find('\0') == std::string::npos);
    check(recording.line >= 1 && recording.line <= lines);
  }
  for (const ListedRecording& transcript : read_transcripts(text, "transcripts", errors)) {
    check(text.find("(" + transcript.name + ")") != std::string_view::npos);
    check(transcript.line >= 1 && transcript.line <= lines);
  }
  errors.throw_if_any();
}

void fuzz_audio(std::string_view bytes) {
  const bool big = roughness(bytes, ByteOrder::big) < roughness(bytes, ByteOrder::little);
  const auto samples = decode_samples(bytes, "raw", big ? ByteOrder::big : ByteOrder::little);
  const std::int64_t frames = FeatureExtractor::frames(static_cast<std::int64_t>(samples.size()));
  std::vector<float> features(static_cast<std::size_t>(frames * FeatureExtractor::features));
  FeatureExtractor(SpeechFeatures::cepstral).extract(samples, features.data());
  for (const float x : features) check(x - x == 0);
}

void fuzz_text(std::string_view text, TextUnit unit, std::int64_t limit) {
  TextOptions options;
  options.unit = unit;
  options.vocabulary_size = limit;
  const Vocabulary vocabulary = Vocabulary::of_text(text, "text", options);
  for (const std::int32_t token : encode(text, "text", options, vocabulary))
    check(token >= 0 && token < vocabulary.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 7) {
      case 0:
        fuzz_alignment(text);
        break;
      case 1:
        check(StateList(text, "states").size() > 0);
        break;
      case 2:
        fuzz_audio(text);
        break;
      case 3:
        fuzz_text(text, TextUnit::words, 0);
        break;
      case 4:
        fuzz_text(text, TextUnit::characters, 3);
        break;
      case 5:
        fuzz_lists(text);
        break;
      default:
        check(Vocabulary::of_list(text, "list", TextOptions{}).size() > 0);
    }
  } catch (const FileError&) {
  }
  return 0;
}
