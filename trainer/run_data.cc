#include "trainer/run_data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"
#include "data/sequence_batches.h"
#include "nn/graph.h"

namespace lpsgd {

namespace {

/// Where the network's file says `key`.
config::Origin network_origin(const RunConfig& run, std::string_view key) {
  const config::Value* found = run.network.find(key);
  return found ? found->origin : run.network.origin;
}

/// What gives the network `classes` classes: the parameter that its file takes their number from, if there is
/// one.
std::string classes_hint(const RunConfig& run, std::int64_t classes) {
  const config::Value* const said = run.network.find("classes");
  const config::Value* const parameters = run.network.find("parameters");
  if (said && said->is_scalar() && said->scalar.starts_with('$')) {
    const std::string parameter = said->scalar.substr(1);
    if (parameters && parameters->find(parameter))
      return fmt::format("set network.parameters.{}={}", parameter, classes);
  }
  return fmt::format("set `classes` and the units of the last layer in the network's file to {}", classes);
}

/// The errors of a few bad files, a line each.
std::string first_lines(const std::string& text) {
  constexpr std::size_t few = 3;
  std::size_t end = 0;
  for (std::size_t line = 0; line < few && end != std::string::npos; ++line)
    end = text.find('\n', line == 0 ? 0 : end + 1);
  if (end == std::string::npos) return text;
  const auto more = std::count(text.begin() + static_cast<std::ptrdiff_t>(end), text.end(), '\n');
  return fmt::format("{}\nand {} more, which `lpsgd data check` names", text.substr(0, end), more);
}

void check_images(const RunConfig& run, const NetworkSpec& network, const ImageDataset& images) {
  if (network.input_shape().size() != 3)
    config::fail(origin_of(run, "data", "dataset"), "data.dataset",
                 fmt::format("the network takes sequences ({}), and data set {} has images",
                             fmt::join(network.input_shape(), ", "), run.data.dataset));
  if (run.data.truncate > 0)
    config::fail(origin_of(run, "data", "truncate"), "data.truncate",
                 fmt::format("cuts sequences, and data set {} has images", run.data.dataset));
  const std::optional<ImageShape> image = images.fixed_shape();
  const ImageShape input{network.input_shape()[0], network.input_shape()[1], network.input_shape()[2]};
  if (image && run.data.evaluate.automatic() && !can_become(*image, input))
    config::fail(network_origin(run, "input"), "network.input",
                 fmt::format("the network takes ({}), data set {} has images of ({}, {}, {})",
                             fmt::join(network.input_shape(), ", "), run.data.dataset, image->height,
                             image->width, image->channels));
  with_locations(run, [&] {
    normalization(run.data, input.channels);
    resolve({run.data.augment, run.data.evaluate, run.data.interpolation}, image, input);
  });
}

void check_sequences(const RunConfig& run, const NetworkSpec& network, const Dataset& dataset) {
  const std::vector<std::int64_t>& input = network.input_shape();
  const auto* speech = dynamic_cast<const SequenceDataset*>(&dataset);
  const auto fail = [&](const std::string& has) {
    config::fail(network_origin(run, "input"), "network.input",
                 fmt::format("the network takes ({}), data set {} has {}", fmt::join(input, ", "),
                             run.data.dataset, has));
  };
  if (speech && (input.size() != 2 || input[1] != speech->features()))
    fail(fmt::format("sequences of (frames, {})", speech->features()));
  if (!speech && input.size() != 1) fail("tokens");
  const LayerInfo& last = network.layers().back();
  if (last.shape.size() != 2)
    config::fail(
        network_origin(run, "layers"), "network.layers",
        fmt::format("the last layer '{}' gives ({}), but {} has a label for each {}: (frames, classes) is "
                    "needed",
                    last.name, fmt::join(last.shape, ", "), run.data.dataset, speech ? "frame" : "token"));
}

/// The network's vocabulary is as large as its smallest embedding and its number of classes allow.
void check_vocabulary(const RunConfig& run, const NetworkSpec& network, const TextDataset& text) {
  std::int64_t vocabulary = network.classes();
  const Graph& graph = network.graph();
  for (const Node& node : graph.nodes)
    if (node.layer && node.layer->reads_tokens())
      vocabulary = std::min(vocabulary, graph.tensor(node, node.tensors[0]).shape[0]);
  if (text.classes() > vocabulary)
    config::fail(network_origin(run, "classes"), "network",
                 fmt::format("vocabulary too small: the network has {} tokens, data set {} has {}",
                             vocabulary, run.data.dataset, text.classes()));
}

}  // namespace

DataKind kind_of(const Dataset& dataset) {
  if (dynamic_cast<const SequenceDataset*>(&dataset)) return DataKind::speech;
  return dynamic_cast<const TextDataset*>(&dataset) ? DataKind::text : DataKind::images;
}

std::shared_ptr<const Dataset> open_split(const RunConfig& run, Split split) {
  std::shared_ptr<const Dataset> out;
  try {
    with_locations(run, [&] { out = open_dataset(run.data, split); });
  } catch (const FileError& e) {
    throw FileError(first_lines(e.what()));
  }
  return out;
}

TrainData open_data(RunConfig& run) {
  TrainData data;
  data.train = open_split(run, Split::train);
  if (const auto* speech = dynamic_cast<const SequenceDataset*>(data.train.get())) {
    const Normalization used = speech->normalization();
    run.data.mean = used.mean;
    run.data.std = used.std;
  }
  data.test = open_split(run, Split::test);
  return data;
}

NetworkSpec network_for(const RunConfig& run, std::initializer_list<const Dataset*> datasets) {
  std::optional<std::int64_t> frames;
  for (const Dataset* dataset : datasets)
    if (kind_of(*dataset) != DataKind::images)
      with_locations(run, [&] { frames = std::max(frames.value_or(0), frames_needed(*dataset, run.data)); });
  return network_of(run, frames);
}

EvaluateOptions evaluation_of(const RunConfig& run, const NetworkSpec& network, const Dataset& images) {
  const std::vector<std::int64_t>& input = network.input_shape();
  return resolve({run.data.augment, run.data.evaluate, run.data.interpolation},
                 dynamic_cast<const ImageDataset&>(images).fixed_shape(), {input[0], input[1], input[2]})
      .evaluate;
}

void check_data(const RunConfig& run, const NetworkSpec& network, const Dataset& dataset, Split split) {
  const auto* text = dynamic_cast<const TextDataset*>(&dataset);
  if (const auto* images = dynamic_cast<const ImageDataset*>(&dataset))
    check_images(run, network, *images);
  else
    check_sequences(run, network, dataset);
  if (text)
    check_vocabulary(run, network, *text);
  else if (network.classes() != dataset.classes())
    config::fail(network_origin(run, "classes"), "network.classes",
                 fmt::format("the network has {} classes, data set {} has {}{}", network.classes(),
                             run.data.dataset, dataset.classes(),
                             split == Split::train ? "; " + classes_hint(run, dataset.classes()) : ""));
  if (split == Split::train && dataset.size() < run.train.batch_size)
    config::fail(origin_of(run, "train", "batch_size"), "train.batch_size",
                 fmt::format("the training set has {} samples, fewer than one global batch of {}",
                             dataset.size(), run.train.batch_size));
}

}  // namespace lpsgd
