#include "trainer/agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "core/checksum.h"
#include "core/error.h"
#include "lpsgd_build.h"
#include "quant/codec.h"
#include "trainer/environment.h"

namespace lpsgd {

namespace {

using config::Value;

bool holds_scalars(const Value& sequence) {
  return std::all_of(sequence.items.begin(), sequence.items.end(),
                     [](const Value& item) { return item.is_scalar() || item.is_null(); });
}

/// Each key with a value of its own: "network.layers[3].filters", "data.mean".
void flatten(const Value& value, const std::string& path, std::vector<Fact>& facts) {
  if (value.is_map() && !value.entries.empty())
    for (const Value::Entry& e : value.entries)
      flatten(e.value, path.empty() ? e.key : path + "." + e.key, facts);
  else if (value.is_sequence() && !holds_scalars(value))
    for (std::size_t i = 0; i < value.items.size(); ++i)
      flatten(value.items[i], fmt::format("{}[{}]", path, i), facts);
  else
    facts.push_back({path, config::emit_line(value)});
}

/// A checksum of checksums and numbers.
class Digest {
 public:
  void add(std::uint64_t value) {
    const std::array both{sum_, value};
    sum_ = checksum64(std::as_bytes(std::span(both)));
  }
  template <class T>
  void add_all(std::span<const T> values) {
    add(checksum64(std::as_bytes(values)));
  }
  std::string text() const { return fmt::format("{:016x}", sum_); }

 private:
  std::uint64_t sum_ = 0;
};

/// The name of a sample without the folder that it lies in, which may have another name on each rank. It
/// begins the name, or stands behind a space.
std::string without_folder(std::string name, std::string_view folder) {
  while (folder.ends_with('/')) folder.remove_suffix(1);
  std::size_t at = name.find(folder);
  while (at != std::string::npos && at > 0 && name[at - 1] != ' ') at = name.find(folder, at + 1);
  if (at == std::string::npos) return name;
  std::size_t end = at + folder.size();
  while (end < name.size() && name[end] == '/') ++end;
  return name.erase(at, end - at);
}

std::string names_digest(const Dataset& dataset, const std::string& folder) {
  Digest digest;
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    const std::string name = without_folder(dataset.name(i), folder);
    digest.add_all(std::span<const char>(name));
  }
  return digest.text();
}

std::uint64_t content_checksum(const ImageDataset& images, std::int64_t i, std::vector<std::uint8_t>& file) {
  try {
    return checksum64(std::as_bytes(images.image(i, file).bytes));
  } catch (const FileError&) {
    return 0;  // data.on_bad_sample decides what happens
  }
}

/// Of images in memory all pixels, up to a limit; of shards the checksum of every sample; of files some
/// samples that are evenly spaced.
std::string content_digest(const ImageDataset& images) {
  constexpr std::int64_t most_bytes = std::int64_t{1} << 28, few = 256;
  Digest digest;
  if (images.stored_checksum(0)) {
    for (std::int64_t i = 0; i < images.size(); ++i) digest.add(*images.stored_checksum(i));
    return digest.text();
  }
  const std::optional<ImageShape> shape = images.fixed_shape();
  const bool all = shape && images.size() <= most_bytes / shape->bytes();
  const std::int64_t count = all ? images.size() : std::min(few, images.size());
  std::vector<std::uint8_t> file;
  for (std::int64_t i = 0; i < count; ++i)
    digest.add(content_checksum(images, i * images.size() / count, file));
  return digest.text();
}

std::string label_digest(const ImageDataset& images) {
  std::vector<std::int32_t> labels;
  for (std::int64_t i = 0; i < images.size(); ++i) labels.push_back(images.label(i));
  Digest digest;
  digest.add_all(std::span<const std::int32_t>(labels));
  return digest.text();
}

/// Lengths and labels.
std::string label_digest(const SequenceDataset& sequences) {
  Digest digest;
  std::vector<float> features;
  std::vector<std::int32_t> labels;
  for (std::int64_t i = 0; i < sequences.size(); ++i) {
    const std::int64_t frames = sequences.frames(i);
    features.resize(static_cast<std::size_t>(frames * sequences.features()));
    labels.resize(static_cast<std::size_t>(frames));
    sequences.read(i, 0, frames, features.data(), labels.data());
    digest.add_all(std::span<const std::int32_t>(labels));
  }
  return digest.text();
}

void add_split(const RunConfig& run, const Dataset& dataset, const std::string& split,
               std::vector<Fact>& facts) {
  const auto add = [&](const char* what, std::string value) {
    facts.push_back({fmt::format("the {} of the {} data", what, split), std::move(value)});
  };
  add("number of samples", fmt::format("{}", dataset.size()));
  add("number of classes", fmt::format("{}", dataset.classes()));
  if (const auto* text = dynamic_cast<const TextDataset*>(&dataset)) {
    Digest digest;
    digest.add_all(text->tokens());
    return add("checksum of the tokens", digest.text());
  }
  add("checksum of the names",
      names_digest(dataset, run.data.shards.empty() ? run.data.root : run.data.shards));
  if (const auto* images = dynamic_cast<const ImageDataset*>(&dataset)) {
    add("checksum of the labels", label_digest(*images));
    add("checksum of the content", content_digest(*images));
  }
  if (const auto* sequences = dynamic_cast<const SequenceDataset*>(&dataset)) {
    add("number of features", fmt::format("{}", sequences->features()));
    add("checksum of the labels", label_digest(*sequences));
    add("checksum of the content", fmt::format("{:016x}", sequences->content_checksum()));
  }
}

std::string yes_or_no(bool value) {
  return value ? "yes" : "no";
}

}  // namespace

std::vector<Fact> start_facts(const std::string& command) {
  return {{"the version of lpsgd", build::version},
          {"the revision of lpsgd", revision()},
          {"the version of the wire format", fmt::format("{}", wire_format_version)},
          {"the command", command}};
}

std::vector<Fact> option_facts(const TrainArguments& arguments) {
  const auto given = [](const std::string& text) { return text.empty() ? "not given" : text; };
  return {{"--out", given(arguments.out)},
          {"--resume", yes_or_no(arguments.resume)},
          {"--resume-required", yes_or_no(arguments.resume_required)},
          {"--init", given(arguments.init)},
          {"--init-skip", given(fmt::format("{}", fmt::join(arguments.init_skip, ",")))},
          {"--steps", arguments.steps ? fmt::format("{}", *arguments.steps) : "not given"},
          {"--check-replicas", fmt::format("{}", arguments.check_replicas)},
          {"--trace", given(arguments.trace)}};
}

std::vector<Fact> config_facts(const RunConfig& run) {
  std::vector<Fact> facts;
  flatten(config::write(run), "", facts);
  for (Fact& fact : facts) {
    if (fact.name == "data.root") fact.value = run.data.root.empty() ? "not set" : "set";
    if (fact.name == "data.shards") fact.value = run.data.shards.empty() ? "not set" : "set";
  }
  return facts;
}

std::vector<Fact> data_facts(const RunConfig& run, const TrainData& data) {
  std::vector<Fact> facts;
  add_split(run, *data.train, "training", facts);
  add_split(run, *data.test, "test", facts);
  return facts;
}

}  // namespace lpsgd
