#include "data/speech/an4.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/checksum.h"
#include "core/error.h"
#include "core/file.h"
#include "core/paths.h"
#include "data/file_errors.h"
#include "data/input_file.h"
#include "data/sample_limit.h"
#include "data/speech/alignment.h"
#include "data/speech/an4_lists.h"
#include "data/speech/audio.h"
#include "data/speech/features.h"
#include "data/speech/utterances.h"

namespace lpsgd {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t width = FeatureExtractor::features;

struct Recording {
  std::string name, speaker;  // "an251-fash-b", "fash"
  std::string path;           // of the audio
  std::int64_t frames = 0;
  const Alignment* alignment = nullptr;
};

constexpr std::uint64_t max_list_bytes = 64 << 20;
constexpr std::uint64_t max_recording_bytes = 256 << 20;  // two hours

/// The corpus: which recordings there are and how their frames are labelled. Everything but the audio's
/// content is checked here, for both splits.
class Corpus {
 public:
  explicit Corpus(const DataOptions& options)
      : root_(options.root),
        list_((root_ / "etc/an4_train.fileids").string()),
        alignment_file_((root_ / options.speech.alignment).string()) {
    errors_.attempt([&] {
      const std::string path = (root_ / options.speech.states).string();
      states_.emplace(read_file(path, max_list_bytes), path);
    });
    errors_.attempt([&] {
      const std::string text = read_file(alignment_file_, max_list_bytes);
      if (states_) alignments_ = read_alignments(text, alignment_file_, *states_);
    });
    errors_.attempt([&] { read_list(); });
    errors_.throw_if_any();
    hold_out(options.speech.held_out);
  }

  std::int64_t states() const { return states_->size(); }
  const std::vector<Recording>& recordings(Split split) const {
    return split == Split::train ? train_ : test_;
  }

 private:
  /// Errors of single lines and recordings are kept in `errors_`.
  void read_list() {
    const bool is_aligned = errors_.empty();
    const std::string text = read_file(list_, max_list_bytes);
    for (const ListedRecording& listed : read_recording_list(text, list_, errors_)) {
      listed_.insert(listed.name);
      const std::string where = fmt::format("{}:{}", list_, listed.line);
      errors_.attempt([&] {
        train_.push_back(recording(fs::path(listed.folder) / listed.name, where));
        if (is_aligned) align(train_.back(), where);
      });
    }
    if (listed_.empty()) throw FileError(fmt::format("{}: names no recording", list_));
    check_alignments();
    check_transcripts();
  }

  Recording recording(const fs::path& id, const std::string& where) const {
    Recording out{id.filename().string(), id.parent_path().filename().string(),
                  (root_ / "wav" / id).string() + ".raw"};
    const std::uint64_t bytes = size_of(out.path, where);
    if (bytes % 2 != 0)
      throw FileError(fmt::format("{}: truncated: {} bytes, which is no whole number of 16 bit samples",
                                  out.path, bytes));
    out.frames = FeatureExtractor::frames(static_cast<std::int64_t>(bytes / 2));
    if (out.frames == 0)
      throw FileError(fmt::format("{}: {} samples, fewer than the {} of the shortest recording with a frame",
                                  out.path, bytes / 2, 3 * FeatureExtractor::shift));
    return out;
  }

  static std::uint64_t size_of(const std::string& path, const std::string& where) {
    try {
      return InputFile(path).size();
    } catch (const FileError& e) {
      throw FileError(fmt::format("{} ({} names it)", e.what(), where));
    }
  }

  void align(Recording& r, const std::string& where) const {
    const auto found = alignments_.find(r.name);
    if (found == alignments_.end())
      throw FileError(fmt::format("{}: '{}' has no alignment in {}", where, r.name, alignment_file_));
    r.alignment = &found->second;
    if (r.alignment->frames() != r.frames)
      throw FileError(fmt::format("{}:{}: the alignment of '{}' has {} frames, {} has {}", alignment_file_,
                                  r.alignment->line, r.name, r.alignment->frames(), r.path, r.frames));
  }

  void check_alignments() {
    std::map<std::size_t, std::string> unlisted;  // by line
    for (const auto& [name, alignment] : alignments_)
      if (!listed_.contains(name)) unlisted.emplace(alignment.line, name);
    for (const auto& [line, name] : unlisted)
      errors_.add(fmt::format("{}:{}: an alignment of '{}', which {} does not name", alignment_file_, line,
                              name, list_));
  }

  void check_transcripts() {
    const std::string path = (root_ / "etc/an4_train.transcription").string();
    if (!path_exists(path)) return;
    for (const ListedRecording& transcript : read_transcripts(read_file(path, max_list_bytes), path, errors_))
      if (!listed_.contains(transcript.name))
        errors_.add(fmt::format("{}:{}: a transcript of '{}', which has no audio: {} does not name it", path,
                                transcript.line, transcript.name, list_));
  }

  void hold_out(const std::vector<std::string>& names) {
    const std::set<std::string> wanted(names.begin(), names.end());
    for (const std::string& name : wanted)
      if (std::none_of(train_.begin(), train_.end(),
                       [&](const Recording& r) { return r.name == name || r.speaker == name; }))
        throw ConfigError(fmt::format("data.speech.held_out: {} names neither a recording nor a speaker '{}'",
                                      list_, name));
    const auto stays = [&](const Recording& r) {
      return !wanted.contains(r.name) && !wanted.contains(r.speaker);
    };
    const auto first_held = std::stable_partition(train_.begin(), train_.end(), stays);
    test_.assign(std::make_move_iterator(first_held), std::make_move_iterator(train_.end()));
    train_.erase(first_held, train_.end());
    if (train_.empty() || test_.empty())
      throw ConfigError(
          fmt::format("data.speech.held_out: holds out {} of {} recordings; there must be some of both",
                      test_.size(), train_.size() + test_.size()));
  }

  fs::path root_;
  std::string list_, alignment_file_;
  FileErrors errors_;
  std::optional<StateList> states_;
  std::unordered_map<std::string, Alignment> alignments_;
  std::set<std::string> listed_;
  std::vector<Recording> train_, test_;
};

/// The byte order in which the corpus is smoother, judged by its first recordings.
ByteOrder byte_order(ByteOrder wanted, const Corpus& corpus) {
  if (wanted != ByteOrder::automatic) return wanted;
  constexpr std::size_t judged = 32;
  const std::vector<Recording>& recordings = corpus.recordings(Split::train);
  std::int64_t little = 0, big = 0;
  for (std::size_t i = 0; i < std::min(judged, recordings.size()); ++i) {
    const std::string bytes = read_file(recordings[i].path, max_recording_bytes);
    little += roughness(bytes, ByteOrder::little);
    big += roughness(bytes, ByteOrder::big);
  }
  return big < little ? ByteOrder::big : ByteOrder::little;
}

using Features = std::vector<std::vector<float>>;  // of each recording: (frames, width)

/// `content` becomes a checksum of the recordings' bytes.
Features features_of(const std::vector<Recording>& recordings, const SpeechOptions& options, ByteOrder order,
                     std::uint64_t& content) {
  FeatureExtractor extractor(options.features);
  Features all;
  FileErrors errors;
  for (const Recording& r : recordings)
    errors.attempt([&] {
      const std::string bytes = read_file(r.path, max_recording_bytes);
      const std::array<std::uint64_t, 2> sums{content, checksum64(std::as_bytes(std::span(bytes)))};
      content = checksum64(std::as_bytes(std::span(sums)));
      const std::vector<std::int16_t> samples = decode_samples(bytes, r.path, order);
      const std::int64_t frames = FeatureExtractor::frames(static_cast<std::int64_t>(samples.size()));
      if (frames != r.frames) throw FileError(fmt::format("{}: changed while it was read", r.path));
      all.emplace_back(static_cast<std::size_t>(frames * width));
      extractor.extract(samples, all.back().data());
    });
  errors.throw_if_any();
  return all;
}

/// The mean and standard deviation of each feature. A feature that never changes has deviation 1.
Normalization statistics(const Features& all) {
  std::vector<double> sum(width), squares(width);
  double frames = 0;
  for (const std::vector<float>& features : all) {
    for (std::size_t i = 0; i < features.size(); ++i) sum[i % width] += features[i];
    frames += static_cast<double>(features.size()) / width;
  }
  for (double& mean : sum) mean /= frames;
  for (const std::vector<float>& features : all)
    for (std::size_t i = 0; i < features.size(); ++i) {
      const double difference = features[i] - sum[i % width];
      squares[i % width] += difference * difference;
    }
  for (double& square : squares) square = square > 0 ? std::sqrt(square / frames) : 1;
  return {std::move(sum), std::move(squares)};
}

void check(const Normalization& by) {
  for (const auto& [key, values] : {std::pair{"mean", &by.mean}, std::pair{"std", &by.std}}) {
    if (values->size() != width)
      throw ConfigError(
          fmt::format("data.{}: {} values, but the frames have {} features", key, values->size(), width));
    for (const double value : *values)
      if (!std::isfinite(value))
        throw ConfigError(fmt::format("data.{}: {} is not a finite number", key, value));
  }
  for (const double value : by.std)
    if (!(static_cast<float>(value) > 0))
      throw ConfigError(fmt::format("data.std: {} is not above 0", value));
}

void normalize(std::vector<float>& features, const Normalization& by) {
  for (std::size_t i = 0; i < features.size(); ++i)
    features[i] =
        (features[i] - static_cast<float>(by.mean[i % width])) / static_cast<float>(by.std[i % width]);
}

std::vector<std::int32_t> labels_of(const Alignment& alignment) {
  std::vector<std::int32_t> labels;
  for (const Alignment::Segment& segment : alignment.segments)
    labels.resize(static_cast<std::size_t>(segment.end), segment.state);
  return labels;
}

}  // namespace

std::shared_ptr<const Dataset> open_an4(const DataOptions& options, Split split) {
  if (options.root.empty())
    throw ConfigError("data.root: missing: the folder of AN4, with etc/, wav/ and the alignments");
  const Corpus corpus(options);
  const ByteOrder order = byte_order(options.speech.byte_order, corpus);

  const std::vector<Recording>& recordings = corpus.recordings(split);
  const std::int64_t size =
      sample_limit(options, split, static_cast<std::int64_t>(recordings.size()), options.root);
  Normalization by{options.mean, options.std};
  std::uint64_t content = 0, of_training = 0;
  Features features = features_of(recordings, options.speech, order, content);
  if (by.mean.empty() || by.std.empty()) {
    const Normalization own =
        split == Split::train
            ? statistics(features)
            : statistics(features_of(corpus.recordings(Split::train), options.speech, order, of_training));
    if (by.mean.empty()) by.mean = own.mean;
    if (by.std.empty()) by.std = own.std;
  }
  check(by);

  auto out = std::make_shared<Utterances>(width, options.speech.context, corpus.states(), by, content);
  for (std::int64_t i = 0; i < size; ++i) {
    const auto at = static_cast<std::size_t>(i);
    normalize(features[at], by);
    out->add(recordings[at].path, features[at], labels_of(*recordings[at].alignment));
  }
  return out;
}

}  // namespace lpsgd
