// What batches cost beside the training step that uses them, on one processor core.
//   loader_cost NETWORK [--batch N] [--steps N] [--height N --width N --channels N]
// Trains NETWORK on random images of CIFAR-10's size, or as given, padded by 4, cropped and mirrored, with
// one thread that loads. Prints one JSON object, per step: `step_cpu_seconds`, the processor time of all
// threads; `loader_cpu_seconds`, that of the loader's thread; `wait_seconds`, for which the training thread
// waited for a batch; `scale_seconds`, for the crop and scaling of a batch in the network; and `share`: the
// loader's processor time and the wait over the step's processor time.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "core/clock.h"
#include "core/error.h"
#include "data/loader.h"
#include "nn/network.h"
#include "nn/ops.h"
#include "nn/optimizer.h"

namespace {

struct Arguments {
  std::string network;
  std::int64_t batch = 128, steps = 20;
  lpsgd::ImageShape image{32, 32, 3};
};

void declare(CLI::App& app, Arguments& a) {
  app.add_option("NETWORK", a.network, "a network file")->required();
  app.add_option("--batch", a.batch)->check(CLI::Range(1, 1 << 30));
  app.add_option("--steps", a.steps)->check(CLI::Range(1, 1 << 30));
  app.add_option("--height", a.image.height)->check(CLI::Range(1, 1 << 30));
  app.add_option("--width", a.image.width)->check(CLI::Range(1, 1 << 30));
  app.add_option("--channels", a.image.channels)->check(CLI::Range(1, 1 << 30));
}

/// The least seconds of some passes that crop and scale a batch.
double scale_seconds(const Arguments& a, const lpsgd::Normalization& norm) {
  const auto backend = lpsgd::make_cpu_backend(1, lpsgd::Compute::fp32);
  const std::int64_t elements = a.batch * a.image.bytes();
  const auto input = backend->pixel_input(
      {a.batch, a.image, a.image, norm, lpsgd::DataType::f32, backend->allocate(4 * elements)});
  const std::vector<std::uint8_t> pixels(static_cast<std::size_t>(elements), 77);
  const std::vector<lpsgd::PixelCrop> crops(static_cast<std::size_t>(a.batch), {2, -1, 1});
  const lpsgd::Pass pass{.training = true, .valid = a.batch, .crops = crops};
  double least = 1e9;
  for (int i = 0; i < 20; ++i) {
    const double begin = lpsgd::now_seconds();
    input->upload(pass, pixels, nullptr);
    least = std::min(least, lpsgd::now_seconds() - begin);
  }
  return least;
}

void run(const Arguments& a) {
  const lpsgd::NetworkSpec spec(lpsgd::config::parse_file(a.network));
  lpsgd::DataOptions data;
  data.dataset = "noise";
  data.image = {a.image.height, a.image.width, a.image.channels};
  data.classes = spec.classes();
  data.train_samples = a.batch * (a.steps + 2);
  data.augment = {.pad = 4, .mirror = true};
  lpsgd::Loader loader(lpsgd::make_batch_source(lpsgd::open_dataset(data, lpsgd::Split::train), data,
                                                {.global_batch = a.batch, .input = spec.input_shape()}),
                       {});
  const lpsgd::Normalization norm = lpsgd::normalization(data, a.image.channels);
  lpsgd::Network network(spec, {.batch = a.batch, .pixels = lpsgd::PixelOptions{a.image, norm}});
  lpsgd::Optimizer optimizer({.momentum = 0.9}, network.tensors(), network.parameters().size());
  optimizer.set_rate(0.01);
  std::vector<double> waits;
  double all = 0, own = 0;
  loader.start(0);
  for (std::int64_t s = -2; s < a.steps; ++s) {
    if (s == 0) {
      all = -lpsgd::cpu_seconds(lpsgd::CpuTime::process);
      own = -lpsgd::cpu_seconds(lpsgd::CpuTime::thread);
      waits.clear();
    }
    const double begin = lpsgd::now_seconds();
    const lpsgd::Batch batch = loader.next();
    waits.push_back(lpsgd::now_seconds() - begin);
    network.forward_train(
        {.labels = batch.labels, .pixels = batch.pixels, .crops = batch.crops, .read = batch.read}, s + 2);
    network.backward({});
    optimizer.step(network.parameters(), network.gradients());
  }
  all += lpsgd::cpu_seconds(lpsgd::CpuTime::process);
  own += lpsgd::cpu_seconds(lpsgd::CpuTime::thread);
  const auto n = static_cast<double>(a.steps);
  std::ranges::sort(waits);
  const double wait = waits[waits.size() / 2];
  const nlohmann::ordered_json o = {{"network", spec.name()},
                                    {"batch", a.batch},
                                    {"steps", a.steps},
                                    {"step_cpu_seconds", all / n},
                                    {"loader_cpu_seconds", (all - own) / n},
                                    {"wait_seconds", wait},
                                    {"wait_seconds_max", waits.back()},
                                    {"scale_seconds", scale_seconds(a, norm)},
                                    {"share", (all - own + n * wait) / all}};
  fmt::print("{}\n", o.dump(2));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("What batches cost beside the training step that uses them.");
  Arguments arguments;
  declare(app, arguments);
  try {
    app.parse(argc, argv);
    run(arguments);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  } catch (const std::exception& e) {
    fmt::print(stderr, "loader_cost: {}\n", e.what());
    return 1;
  }
}
