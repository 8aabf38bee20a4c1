#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "comm/waiting.h"
#include "core/error.h"
#include "core/paths.h"
#include "core/printable.h"
#include "data/image_files.h"
#include "data/loader.h"
#include "nn/network.h"
#include "trainer/batch_inputs.h"
#include "trainer/commands.h"
#include "trainer/evaluate.h"
#include "trainer/json_text.h"
#include "trainer/print.h"
#include "trainer/run_folder.h"
#include "trainer/trained_run.h"
#include "trainer/weights.h"

namespace lpsgd {

namespace {

using nlohmann::ordered_json;

constexpr std::int64_t most_at_once = 32;  // images of a batch

std::vector<std::string> image_paths(const std::vector<std::string>& given) {
  std::vector<std::string> out;
  for (const std::string& path : given) {
    if (!path_exists(path) || !is_folder(path)) {
      out.push_back(path);
      continue;
    }
    for (std::string& one : images_in(path)) out.push_back(std::move(one));
  }
  return out;
}

/// The run's options for these images. They become samples as in the run's evaluation; but where all images
/// of its data set had the network's size, those of another size are cut to the largest centred part.
DataOptions data_options(const RunConfig& run) {
  DataOptions out = run.data;
  out.augment = {};
  out.on_bad_sample = OnBadSample::skip;
  if (out.evaluate.automatic() && !has_images_of_any_size(out.dataset)) out.evaluate.side_ratio = 1;
  return out;
}

struct Guess {
  std::int64_t label = 0;
  float score = 0;
  double probability = 0;
};

/// The `top` most probable classes, equal ones by label.
std::vector<Guess> most_probable(std::span<const float> scores, std::int64_t top) {
  const double largest = *std::ranges::max_element(scores);
  std::vector<Guess> all;
  double sum = 0;
  for (std::size_t c = 0; c < scores.size(); ++c) {
    all.push_back({static_cast<std::int64_t>(c), scores[c], std::exp(scores[c] - largest)});
    sum += all.back().probability;
  }
  for (Guess& one : all) one.probability /= sum;
  std::ranges::stable_sort(all, std::greater<>(), &Guess::probability);
  all.resize(std::min(all.size(), static_cast<std::size_t>(top)));
  return all;
}

/// Prints what is found image by image, or keeps it for JSON.
class Results {
 public:
  Results(const InferArguments& arguments, const TrainedRun& run) : arguments_(arguments), run_(run) {}

  void add(const std::string& image, std::span<const float> scores) {
    if (!std::ranges::all_of(scores, [](float x) { return std::isfinite(x); }))
      throw Error(fmt::format("{}: the scores hold a NaN or an infinity", printable(image)));
    const std::vector<Guess> guesses = most_probable(scores, arguments_.top);
    if (!arguments_.json) {
      std::string out = printable(image) + "\n";
      for (const Guess& one : guesses)
        out += fmt::format("  {:6.2f} %  {}\n", 100 * one.probability, printable(name(one.label)));
      print(out);
      return;
    }
    ordered_json classes = ordered_json::array();
    for (const Guess& one : guesses)
      classes.push_back({{"class", one.label},
                         {"name", name(one.label)},
                         {"probability", one.probability},
                         {"score", one.score}});
    images_.push_back({{"image", image}, {"classes", std::move(classes)}});
  }

  void add_bad(const std::string& image, const std::string& error) {
    status_ = 1;
    if (arguments_.json)
      images_.push_back({{"image", image}, {"error", error}});
    else
      print_error(error);
  }

  int finish(const std::string& checkpoint) const {
    if (arguments_.json) print(json_text({{"checkpoint", checkpoint}, {"images", images_}}, 2) + "\n");
    return status_;
  }

 private:
  std::string name(std::int64_t label) const {
    return run_.classes.empty() ? fmt::format("class {}", label)
                                : run_.classes[static_cast<std::size_t>(label)];
  }

  const InferArguments& arguments_;
  const TrainedRun& run_;
  ordered_json images_ = ordered_json::array();
  int status_ = 0;
};

void classify(Network& network, Loader& loader, const std::vector<std::string>& paths, Results& results) {
  std::size_t at = 0;
  loader.start(0);
  for (std::int64_t b = loader.batches(); b > 0; --b) {
    const Batch batch = loader.next();
    network.forward_eval(samples_of(batch, 1), batch.valid);
    const std::span<const float> scores = network.logits();
    const std::size_t classes = scores.size() / batch.labels.size();
    std::size_t bad = 0;
    for (std::int64_t i = 0; i < batch.valid; ++i, ++at) {
      const auto row = static_cast<std::size_t>(i);
      if (batch.labels[row] < 0)
        results.add_bad(paths[at], batch.bad_samples[bad++]);
      else
        results.add(paths[at], scores.subspan(row * classes, classes));
    }
  }
}

}  // namespace

int infer_command(const InferArguments& arguments) {
  TrainedRun run = open_trained_run(arguments.run, arguments.checkpoint, arguments.overrides);
  if (run.network.input_shape().size() != 3)
    throw ConfigError(
        fmt::format("infer takes images, but the network of {} reads sequences", arguments.run));
  const std::vector<std::string> paths = image_paths(arguments.images);
  const Weights weights = read_weights(run.weights, run.network);

  run.config.train.batch_size = std::min(static_cast<std::int64_t>(paths.size()), most_at_once);
  run.config.train.micro_batches = 1;
  run.config.data = data_options(run.config);
  const int threads = threads_of_rank(run.config.train, 1);
  const Device device = device_of(run.config.train, 0);
  std::vector<ImageFile> files;
  for (const std::string& path : paths) files.push_back({.name = path});
  const auto images = std::make_shared<ImageFiles>(
      std::move(files), std::vector<std::string>(static_cast<std::size_t>(run.network.classes())));
  Loader loader(
      make_batch_source(images, run.config.data, batch_options(run.config, run.network, 0, 1, false)),
      loader_options(run.config, device, threads, false));
  Network network(run.network, inference_options(run.config, device, threads, loader.shape()));
  set_weights(network, weights);
  Results results(arguments, run);
  end_if_stalled([&] { classify(network, loader, paths, results); });
  return results.finish(weights.found_in);
}

}  // namespace lpsgd
