// `lpsgd data check`: reads all there is, once.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "core/error.h"
#include "core/printable.h"
#include "data/image_reader.h"
#include "trainer/data_commands.h"
#include "trainer/data_progress.h"
#include "trainer/print.h"
#include "trainer/run_config.h"
#include "trainer/run_folder.h"
#include "trainer/sample_threads.h"

namespace lpsgd {

namespace {

constexpr std::int64_t classes_in_line = 10;
constexpr std::size_t most_sizes = 10;  // that are counted one by one

/// What one thread has seen.
struct Seen {
  using Size = std::array<std::int64_t, 3>;     // height, width, channels
  std::map<std::int32_t, std::int64_t> labels;  // how many of each
  std::map<Size, std::int64_t> sizes;           // of images
  std::int64_t min_height = INT64_MAX, min_width = INT64_MAX, max_height = 0, max_width = 0;
  std::int64_t bad = 0, frames = 0;

  void add(const ImageShape& s) {
    ++sizes[{s.height, s.width, s.channels}];
    min_height = std::min(min_height, s.height);
    min_width = std::min(min_width, s.width);
    max_height = std::max(max_height, s.height);
    max_width = std::max(max_width, s.width);
  }
  void add(const Seen& other) {
    for (const auto& [label, count] : other.labels) labels[label] += count;
    for (const auto& [size, count] : other.sizes) sizes[size] += count;
    min_height = std::min(min_height, other.min_height);
    min_width = std::min(min_width, other.min_width);
    max_height = std::max(max_height, other.max_height);
    max_width = std::max(max_width, other.max_width);
    bad += other.bad;
    frames += other.frames;
  }
};

/// Reads samples of one data set, on one thread.
class SampleChecker {
 public:
  explicit SampleChecker(const Dataset& dataset)
      : dataset_(dataset),
        images_(dynamic_cast<const ImageDataset*>(&dataset)),
        sequences_(dynamic_cast<const SequenceDataset*>(&dataset)) {}

  /// FileError says what is wrong.
  void check(std::int64_t i) {
    if (images_) check_image(i);
    if (sequences_) check_sequence(i);
  }
  Seen seen;

 private:
  void check_label(std::int32_t label, std::int64_t i) {
    if (label < 0 || label >= dataset_.classes())
      throw FileError(
          fmt::format("{}: label {}, expected 0 to {}", dataset_.name(i), label, dataset_.classes() - 1));
    ++seen.labels[label];
  }

  void check_image(std::int64_t i) {
    const StoredImage image = images_->image(i, file_);
    ImageReader& reader = image.shape && image.shape->channels == 1 ? grey_ : colour_;
    // Pixels of other numbers of channels are taken as they are.
    const bool is_read = !image.shape || image.shape->channels == 1 || image.shape->channels == 3;
    const ImageShape shape = is_read ? reader.check(image, dataset_.name(i)) : *image.shape;
    check_label(images_->label(i), i);
    seen.add(shape);
  }

  void check_sequence(std::int64_t i) {
    const std::int64_t frames = sequences_->frames(i);
    values_.resize(static_cast<std::size_t>(frames * sequences_->features()));
    labels_.resize(static_cast<std::size_t>(frames));
    sequences_->read(i, 0, frames, values_.data(), labels_.data());
    for (const float value : values_)
      if (!std::isfinite(value))
        throw FileError(fmt::format("{}: a feature is not finite", dataset_.name(i)));
    for (const std::int32_t label : labels_) check_label(label, i);
    seen.frames += frames;
  }

  static ImageTransform whole_image() {
    ImageTransform transform;
    transform.evaluate.side_ratio = 1;
    return transform;
  }

  const Dataset& dataset_;
  const ImageDataset* images_;
  const SequenceDataset* sequences_;
  ImageReader colour_{whole_image(), {1, 1, 3}}, grey_{whole_image(), {1, 1, 1}};
  std::vector<std::uint8_t> file_;
  std::vector<float> values_;
  std::vector<std::int32_t> labels_;
};

std::string summary(const std::string& split, const Dataset& dataset, const Seen& seen) {
  if (const auto* text = dynamic_cast<const TextDataset*>(&dataset))
    return fmt::format("{}: {} tokens, a vocabulary of {}\n", split, text->tokens().size(), text->classes());
  const bool is_image = dynamic_cast<const ImageDataset*>(&dataset) != nullptr;
  std::string out = fmt::format("{}: {} {}, {} classes", split, dataset.size() - seen.bad,
                                is_image ? "images" : "sequences", dataset.classes());
  if (seen.bad > 0) out += fmt::format(", and {} that cannot be read", seen.bad);
  if (seen.frames > 0) out += fmt::format(", {} frames", seen.frames);
  if (seen.sizes.size() == 1) out += fmt::format(", {}", fmt::join(seen.sizes.begin()->first, " x "));
  if (seen.sizes.size() > 1)
    out += fmt::format(", {} sizes, heights from {} to {}, widths from {} to {}", seen.sizes.size(),
                       seen.min_height, seen.max_height, seen.min_width, seen.max_width);
  out += '\n';
  for (std::int64_t first = 0; first < dataset.classes(); first += classes_in_line) {
    const std::int64_t last = std::min(dataset.classes(), first + classes_in_line) - 1;
    out += fmt::format("{}: of class {}: ", split,
                       first == last ? fmt::format("{}", first) : fmt::format("{} to {}", first, last));
    for (std::int64_t c = first; c <= last; ++c) {
      const auto found = seen.labels.find(static_cast<std::int32_t>(c));
      out += fmt::format("{}{}", c == first ? "" : " ", found == seen.labels.end() ? 0 : found->second);
    }
    out += '\n';
  }
  if (seen.sizes.size() > 1 && seen.sizes.size() <= most_sizes)
    for (const auto& [size, count] : seen.sizes)
      out += fmt::format("{}: of size {}: {}\n", split, fmt::join(size, " x "), count);
  return out;
}

/// Reads a split, prints what it finds, and returns the number of bad samples.
std::int64_t check_split(const Dataset& dataset, const char* split, int threads) {
  std::vector<std::unique_ptr<SampleChecker>> checkers;
  for (int t = 0; t < threads; ++t) checkers.push_back(std::make_unique<SampleChecker>(dataset));
  const bool is_text = dynamic_cast<const TextDataset*>(&dataset) != nullptr;  // read when it was opened
  Seen seen;
  {
    DataProgress progress(split, dataset.size());
    for_samples(0, is_text ? 0 : dataset.size(), threads, [&](int t, std::int64_t i) {
      SampleChecker& checker = *checkers[static_cast<std::size_t>(t)];
      try {
        checker.check(i);
      } catch (const FileError& e) {
        ++checker.seen.bad;
        progress.line(fmt::format("bad: {}", printable(e.what())));
      }
      progress.count();
    });
  }
  for (const auto& checker : checkers) seen.add(checker->seen);
  print(summary(split, dataset, seen));
  return seen.bad;
}

}  // namespace

int data_check_command(const DataCheckArguments& arguments) {
  const RunConfig run = load_run_config(arguments.config, arguments.overrides, config::Environment::expand);
  const int threads = run.data.workers > 0 ? static_cast<int>(run.data.workers) : usable_cores();
  std::int64_t bad = 0;
  std::set<std::string> failures;  // both splits may fail for the same reason
  for (const Split split : {Split::train, Split::test}) {
    std::shared_ptr<const Dataset> dataset;
    try {
      with_locations(run, [&] { dataset = open_dataset(run.data, split); });
    } catch (const FileError& e) {
      std::istringstream lines(e.what());  // one for each bad file
      for (std::string line; std::getline(lines, line);)
        if (failures.insert(line).second) print(fmt::format("bad: {}\n", printable(line)));
      continue;
    }
    bad += check_split(*dataset, split == Split::train ? "train" : "test", threads);
  }
  const auto all = bad + static_cast<std::int64_t>(failures.size());
  if (all > 0)
    throw FileError(fmt::format("data set {}: {} {} bad, named above", run.data.dataset, all,
                                all == 1 ? "file or sample is" : "files or samples are"));
  return 0;
}

}  // namespace lpsgd
