// Times training steps of a network file: forward, backward and update, on random data.
//   step_bench NETWORK [--batch N] [--steps N] [--warm-up N] [--threads N] [--device cuda] [--tf32|--bf16]
//              [--search-seconds S] [--branches never|measured|always]
//              [--bytes] [--set a.b=value]... [--frames N] [--length N] [--profile]
// --frames is the number of frames of a network that leaves it open; with --length the sequences of the batch
// have so many of them. With --bytes images are fed as the trainer does: pixels as bytes and crops, some of
// them mirrored, which the network scales; otherwise as float32. Prints one JSON object. `seconds` is of the
// median step; on a GPU it is the mean, and the times of the passes are the device's. `cpu_seconds_min` is
// the smallest processor time of a step, summed over threads; other load affects it less. `peak_bytes` is the
// peak memory of the process less what it held before the network was made. On a GPU `device_bytes` is the
// memory of network and optimizer there while it trains, and `device_peak_bytes` the most so far, which
// includes the search for algorithms; neither includes what libraries take for themselves. With --profile,
// `operations` has the times of each operation. On a GPU, `branches` has their numbers, and how long
// passes took with and without them. By default so many steps are warm-up that it is settled which are used.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/config.h"
#include "core/error.h"
#include "core/log.h"
#include "core/philox.h"
#include "core/stopwatch.h"
#include "nn/network.h"
#include "nn/optimizer.h"

namespace {

struct Arguments {
  std::string network;
  long frames = 0, length = 0;
  long batch = 128, steps = 10, threads = 1;
  std::optional<long> warm_up;
  lpsgd::Branches branches = lpsgd::Branches::measured;
  bool profile = false, bytes = false;
  double search_seconds = lpsgd::default_search_seconds;
  lpsgd::Compute compute = lpsgd::Compute::fp32;
  lpsgd::Recompute recompute = lpsgd::Recompute::none;
  lpsgd::Device device;
  std::vector<std::string> overrides;
};

void declare(CLI::App& app, Arguments& a) {
  app.add_option("NETWORK", a.network, "a network file")->required();
  app.add_option("--batch", a.batch)->check(CLI::Range(1, 1 << 30));
  app.add_option("--steps", a.steps)->check(CLI::Range(1, 1 << 30));
  app.add_option("--warm-up", a.warm_up)->check(CLI::Range(0, 1 << 30));
  app.add_option("--threads", a.threads)->check(CLI::Range(1, 1 << 30));
  app.add_option("--frames", a.frames)->check(CLI::Range(0, 1 << 30));
  app.add_option("--length", a.length)->check(CLI::Range(0, 1 << 30));
  app.add_option("--set", a.overrides, "a.b=value")->allow_extra_args(false);
  app.add_option("--branches", a.branches)
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, lpsgd::Branches>{{"never", lpsgd::Branches::never},
                                                 {"measured", lpsgd::Branches::measured},
                                                 {"always", lpsgd::Branches::always}}));
  app.add_option("--search-seconds", a.search_seconds)->check(CLI::Range(0.0, 1200.0));
  app.add_flag("--profile", a.profile);
  app.add_flag("--bytes", a.bytes);
  auto* bf16 = app.add_flag_callback("--bf16", [&] { a.compute = lpsgd::Compute::bf16; });
  app.add_flag_callback("--recompute", [&] { a.recompute = lpsgd::Recompute::batch_norm; });
  app.add_flag_callback("--tf32", [&] { a.compute = lpsgd::Compute::tf32; })->excludes(bf16);
  app.add_option_function<std::string>("--device",
                                       [&](const std::string& name) {
                                         a.device =
                                             name == "cuda" ? lpsgd::Device::cuda(0) : lpsgd::Device::cpu();
                                       })
      ->check(CLI::IsMember({"cpu", "cuda"}));
}

/// A size of this process from /proc, in bytes: VmRSS is resident now, VmHWM is its maximum so far. (The
/// maximum of getrusage would count the memory of the parent at the time of the fork.)
long memory_bytes(const std::string& which) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != which + ":") continue;
    long kibibytes = 0;
    status >> kibibytes;
    return 1024 * kibibytes;
  }
  throw lpsgd::FileError("/proc/self/status: no " + which);
}

void run(const Arguments& a) {
  const long before = memory_bytes("VmRSS");
  lpsgd::config::Value tree = lpsgd::config::parse_file(a.network);
  for (const std::string& o : a.overrides) lpsgd::config::apply_override(tree, o);
  const lpsgd::NetworkSpec spec(tree, a.frames > 0 ? std::optional<std::int64_t>(a.frames) : std::nullopt);
  lpsgd::NetworkOptions options{.batch = a.batch,
                                .threads = static_cast<int>(a.threads),
                                .compute = a.compute,
                                .recompute = a.recompute,
                                .device = a.device,
                                .search_seconds = a.search_seconds,
                                .branches = a.branches,
                                .time_operations = a.profile};
  if (a.bytes) {
    const auto& shape = spec.input_shape();
    if (shape.size() != 3) throw lpsgd::ConfigError("--bytes: the network does not take images");
    const std::vector<double> halves(static_cast<std::size_t>(shape[2]), 0.5);
    options.pixels = {{shape[0], shape[1], shape[2]}, {halves, halves}};
  }
  lpsgd::Network network(spec, options);
  lpsgd::Optimizer optimizer({.momentum = 0.9, .weight_decay = 1e-4}, network.tensors(),
                             network.parameters().size(), network.stream());
  std::size_t sample = 1;
  for (const std::int64_t d : spec.input_shape()) sample *= static_cast<std::size_t>(d);
  const std::size_t values = sample * static_cast<std::size_t>(a.batch);
  lpsgd::PinnedBuffer<float> inputs(a.device, a.bytes ? 0 : values);
  lpsgd::PinnedBuffer<std::uint8_t> pixels(a.device, a.bytes ? values : 0);
  std::vector<lpsgd::PixelCrop> crops(a.bytes ? static_cast<std::size_t>(a.batch) : 0);
  const std::vector<std::int64_t>& scores = spec.layers().back().shape;
  std::vector<std::int32_t> labels(static_cast<std::size_t>(a.batch * (scores.size() == 2 ? scores[0] : 1)));
  lpsgd::PhiloxSequence draw(1, lpsgd::RandomUse::dataset, 0);
  const auto classes = static_cast<std::uint32_t>(spec.classes());
  const bool tokens = spec.layers().front().kind == "embedding";  // as many words as classes
  for (float& x : inputs.view())
    x = tokens ? static_cast<float>(draw.below(classes)) : 2 * draw.uniform() - 1;
  for (std::uint8_t& x : pixels.view()) x = static_cast<std::uint8_t>(draw.below(256));
  for (lpsgd::PixelCrop& crop : crops) crop.mirrored = static_cast<std::int32_t>(draw.below(2));
  for (std::int32_t& l : labels) l = static_cast<std::int32_t>(draw.below(classes));

  const auto cpu_seconds = [] { return lpsgd::cpu_seconds(lpsgd::CpuTime::process); };
  const std::vector<std::int32_t> lengths(a.length > 0 ? static_cast<std::size_t>(a.batch) : 0,
                                          static_cast<std::int32_t>(a.length));

  std::vector<double> steps, forward, backward, update, cpu;
  lpsgd::Stopwatch forward_watch(network.stream()), backward_watch(network.stream()),
      update_watch(network.stream());
  double started = 0;
  optimizer.set_rate(0.01);
  const long warm_up = a.warm_up.value_or(a.device.is_cuda() ? network.unsettled_steps() + 1 : 4);
  for (long s = -warm_up; s < a.steps; ++s) {
    if (s == 0) {
      network.take_times();
      for (lpsgd::Stopwatch* watch : {&forward_watch, &backward_watch, &update_watch}) watch->take();
      started = lpsgd::now_seconds();
    }
    const double cpu_before = cpu_seconds();
    const double t0 = lpsgd::now_seconds();
    forward_watch.start();
    network.forward_train({.inputs = inputs.view(),
                           .labels = labels,
                           .lengths = lengths,
                           .pixels = pixels.view(),
                           .crops = crops},
                          s + warm_up);
    forward_watch.stop();
    const double t1 = lpsgd::now_seconds();
    backward_watch.start();
    network.backward({});
    backward_watch.stop();
    const double t2 = lpsgd::now_seconds();
    update_watch.start();
    optimizer.step(network.parameters(), network.gradients());
    update_watch.stop();
    const double t3 = lpsgd::now_seconds();
    if (s < 0) continue;
    cpu.push_back(cpu_seconds() - cpu_before);
    steps.push_back(t3 - t0);
    forward.push_back(t1 - t0);
    backward.push_back(t2 - t1);
    update.push_back(t3 - t2);
  }
  if (a.device.is_cuda()) {  // steps overlap with the host: their mean, and the device's own times
    network.stream().synchronize();
    const auto mean = [&](double total) { return std::vector{total / static_cast<double>(a.steps)}; };
    steps = mean(lpsgd::now_seconds() - started);
    forward = mean(forward_watch.take());
    backward = mean(backward_watch.take());
    update = mean(update_watch.take());
  }
  const auto median = [](std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
  };
  const double seconds = median(steps);
  nlohmann::ordered_json out{{"name", "train_step"},
                             {"network", spec.name()},
                             {"batch", a.batch},
                             {"threads", a.threads},
                             {"steps", a.steps},
                             {"seconds", seconds},
                             {"seconds_min", *std::min_element(steps.begin(), steps.end())},
                             {"cpu_seconds_min", *std::min_element(cpu.begin(), cpu.end())},
                             {"forward", median(forward)},
                             {"backward", median(backward)},
                             {"update", median(update)},
                             {"samples_per_s", static_cast<double>(a.batch) / seconds},
                             {"peak_bytes", memory_bytes("VmHWM") - before},
                             {"flops", 3 * spec.flops() * a.batch}};
  if (a.device.is_cuda()) {
    const lpsgd::DeviceMemoryUse use = lpsgd::device_memory_use(a.device);
    out["device_bytes"] = use.current;
    out["device_peak_bytes"] = use.peak;
    const lpsgd::NetworkBranches branches = network.branches();
    out["branches"] = {
        {"forward", branches.forward}, {"backward", branches.backward}, {"times", branches.times}};
  }
  if (a.profile)
    for (const lpsgd::OperationTime& t : network.take_times())
      out["operations"].push_back({{"name", t.name},
                                   {"forward", t.forward / static_cast<double>(a.steps)},
                                   {"backward", t.backward / static_cast<double>(a.steps)}});
  fmt::print("{}\n", out.dump());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times training steps of a network file.");
  Arguments arguments;
  declare(app, arguments);
  try {
    app.parse(argc, argv);
    lpsgd::init_logging(0, 1);
    run(arguments);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  } catch (const lpsgd::Error& e) {
    fmt::print(stderr, "step_bench: {}\n", e.what());
    return e.exit_status();
  } catch (const std::exception& e) {
    fmt::print(stderr, "step_bench: {}\n", e.what());
    return 2;
  }
  return 0;
}
