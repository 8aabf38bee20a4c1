// `lpsgd bench layers`: each operation's time beside the least that its bytes and its arithmetic take on this
// device, both measured in the same run: its roofline (Williams, Waterman and Patterson, 2009).
#include <fmt/format.h>

#include <algorithm>
#include <barrier>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "core/buffer.h"
#include "core/error.h"
#include "core/philox.h"
#include "core/stopwatch.h"
#include "nn/network.h"
#include "trainer/bench/commands.h"
#include "trainer/bench/samples.h"
#include "trainer/json_text.h"
#include "trainer/run_config.h"

namespace lpsgd {

namespace {

using nlohmann::ordered_json;

/// Steps of a network on random data: forward and backward, without an update.
class Steps {
 public:
  Steps(const NetworkSpec& spec, const NetworkOptions& options)
      : network_(spec, options), inputs_(options.device, values_of(spec, options.batch)) {
    const std::vector<std::int64_t>& scores = spec.layers().back().shape;
    labels_.resize(static_cast<std::size_t>(options.batch * (scores.size() == 2 ? scores[0] : 1)));
    PhiloxSequence draw(1, RandomUse::dataset, 0);
    const auto classes = static_cast<std::uint32_t>(spec.classes());
    const bool tokens = spec.layers().front().kind == "embedding";  // as many words as classes
    for (float& x : inputs_.view())
      x = tokens ? static_cast<float>(draw.below(classes)) : 2 * draw.uniform() - 1;
    for (std::int32_t& label : labels_) label = static_cast<std::int32_t>(draw.below(classes));
  }

  /// One row per operation, with the medians of `repeats` steps, which follow `warm_up` others.
  std::vector<OperationTime> run(std::int64_t repeats, std::int64_t warm_up) {
    std::vector<std::vector<OperationTime>> all;
    for (std::int64_t s = 0; s < warm_up + repeats; ++s) {
      network_.forward_train({.inputs = inputs_.view(), .labels = labels_}, s);
      network_.backward({});
      all.push_back(network_.take_times());
    }
    std::vector<OperationTime> out = all.back();
    for (std::size_t i = 0; i < out.size(); ++i) {
      std::vector<double> forward, backward;
      for (auto step = all.begin() + warm_up; step != all.end(); ++step) {
        forward.push_back((*step)[i].forward);
        backward.push_back((*step)[i].backward);
      }
      out[i].forward = median(std::move(forward));
      out[i].backward = median(std::move(backward));
    }
    return out;
  }
  StreamView stream() const { return network_.stream(); }

 private:
  static std::size_t values_of(const NetworkSpec& spec, std::int64_t batch) {
    auto n = static_cast<std::size_t>(batch);
    for (const std::int64_t d : spec.input_shape()) n *= static_cast<std::size_t>(d);
    return n;
  }

  Network network_;
  PinnedBuffer<float> inputs_;
  std::vector<std::int32_t> labels_;
};

/// What the device does at best.
struct Roofline {
  double bytes_per_s = 0;  // of a copy, read and written bytes together
  double flops_per_s = 0;  // of a matrix product
};

/// Of a copy by as many threads as the operations run on.
double measure_copy(const NetworkOptions& options, StreamView stream, std::int64_t bytes,
                    std::int64_t repeats) {
  const auto size = static_cast<std::size_t>(bytes);
  const auto threads = static_cast<std::size_t>(options.device.is_cuda() ? 1 : options.threads);
  DeviceBuffer<std::byte> from(options.device, size), to(options.device, size);
  std::vector<double> seconds;
  Stopwatch watch(stream);
  const auto part = [&](std::size_t t) {
    const std::size_t begin = size * t / threads, end = size * (t + 1) / threads;
    copy_bytes(to.data() + begin, from.data() + begin, end - begin, stream);
  };
  std::barrier together(static_cast<std::ptrdiff_t>(threads));
  std::vector<std::jthread> others;
  for (std::size_t t = 1; t < threads; ++t)
    others.emplace_back([&, t] {
      for (std::int64_t i = -1; i < repeats; ++i) {
        together.arrive_and_wait();
        part(t);
        together.arrive_and_wait();
      }
    });
  for (std::int64_t i = -1; i < repeats; ++i) {  // the first warms up
    together.arrive_and_wait();
    watch.start();
    part(0);
    together.arrive_and_wait();
    watch.stop();
    const double one = watch.take();
    if (i >= 0) seconds.push_back(one);
  }
  return 2 * static_cast<double>(bytes) / median(std::move(seconds));
}

/// A square product: the forward pass of a dense layer.
double measure_product(NetworkOptions options, std::int64_t side, std::int64_t repeats,
                       std::int64_t warm_up) {
  const NetworkSpec spec(config::parse_text(
      fmt::format(
          "input: [1, 1, {0}]\nclasses: 10\nlayers:\n  - flatten\n  - {{dense: product, units: {0}}}\n"
          "  - {{dense: scores, units: 10}}\n",
          side),
      "product"));
  options.batch = side;
  for (const OperationTime& t : Steps(spec, options).run(repeats, warm_up))
    if (t.name == "product") return static_cast<double>(t.forward_cost.flops) / t.forward;
  throw Error("bench layers: the matrix product was not measured");
}

ordered_json row(const OperationTime& operation, const char* pass, double seconds, const OperationCost& cost,
                 const Roofline& roofline) {
  const double memory = static_cast<double>(cost.bytes) / roofline.bytes_per_s;
  const double arithmetic = static_cast<double>(cost.flops) / roofline.flops_per_s;
  return {{"name", fmt::format("{} {}", operation.name, pass)},
          {"operation", operation.name},
          {"kind", operation.kind},
          {"pass", pass},
          {"elements", operation.elements},
          {"seconds", seconds},
          {"bytes_moved", cost.bytes},
          {"flops", cost.flops},
          {"memcpy_seconds", memory},
          {"product_seconds", arithmetic},
          {"bound", memory >= arithmetic ? "memory" : "arithmetic"},
          {"fraction_of_roofline", seconds > 0 ? std::max(memory, arithmetic) / seconds : 0.0}};
}

std::string layer_rates(const ordered_json& rows, const Roofline& roofline) {
  std::size_t width = 9;
  double total = 0, least = 0;
  for (const ordered_json& r : rows) width = std::max(width, r["operation"].get<std::string>().size());
  std::string out = fmt::format("{:<{}}  {:<8} {:>10} {:>9} {:>9} {:>10} {:>8}  {}\n", "operation", width,
                                "pass", "us", "MB", "MFLOP", "least us", "fraction", "bound");
  for (const ordered_json& r : rows) {
    const auto number = [&](const char* key) { return r[key].get<double>(); };
    const double at_best = std::max(number("memcpy_seconds"), number("product_seconds"));
    total += number("seconds");
    least += at_best;
    out += fmt::format("{:<{}}  {:<8} {:>10.1f} {:>9.3f} {:>9.1f} {:>10.1f} {:>8.2f}  {}\n",
                       r["operation"].get<std::string>(), width, r["pass"].get<std::string>(),
                       1e6 * number("seconds"), 1e-6 * number("bytes_moved"), 1e-6 * number("flops"),
                       1e6 * at_best, number("fraction_of_roofline"), r["bound"].get<std::string>());
  }
  out += fmt::format("{:<{}}  {:<8} {:>10.1f} {:>9} {:>9} {:>10.1f} {:>8.2f}\n", "all", width, "",
                     1e6 * total, "", "", 1e6 * least, total > 0 ? least / total : 0.0);
  return out + fmt::format(
                   "roofline of this run: a copy's {:.1f} GB/s (read and written), a matrix product's {:.3f} "
                   "TFLOP/s\n",
                   1e-9 * roofline.bytes_per_s, 1e-12 * roofline.flops_per_s);
}

}  // namespace

const char* const default_network = LPSGD_CONFIGS_FOLDER "/networks/resnet20.yaml";

std::string bench_layers_command(const BenchLayersArguments& a) {
  const NetworkSpec spec = network_of(load_run_config_or_network(a.network, a.overrides),
                                      a.frames > 0 ? std::optional<std::int64_t>(a.frames) : std::nullopt);
  const bool cuda = a.device == "cuda";
  const NetworkOptions options{
      .batch = a.batch,
      .threads = a.threads,
      .compute = a.compute == "bf16"   ? Compute::bf16
                 : a.compute == "tf32" ? Compute::tf32
                                       : Compute::fp32,
      .recompute = a.recompute == "batch_norm" ? Recompute::batch_norm : Recompute::none,
      .device = cuda ? Device::cuda(0) : Device::cpu(),
      .search_seconds = a.search_seconds,
      .time_operations = true};
  if (const auto why = unsupported(options.compute, options.device)) throw ConfigError("--compute: " + *why);
  Steps steps(spec, options);
  const std::vector<OperationTime> times = steps.run(a.repeats, a.warm_up);
  Roofline roofline;
  roofline.bytes_per_s =
      measure_copy(options, steps.stream(), a.copied > 0 ? a.copied : std::int64_t{1} << 28, a.repeats);
  // Which size is fastest depends on caches and on how busy they are.
  const std::vector<std::int64_t> sides = a.side > 0 ? std::vector{a.side}
                                          : cuda     ? std::vector<std::int64_t>{4096, 8192}
                                                     : std::vector<std::int64_t>{256, 512, 1024};
  for (const std::int64_t side : sides)
    roofline.flops_per_s =
        std::max(roofline.flops_per_s, measure_product(options, side, a.repeats, a.warm_up));
  ordered_json rows = ordered_json::array();
  for (const OperationTime& t : times) {
    rows.push_back(row(t, "forward", t.forward, t.forward_cost, roofline));
    if (t.backward_cost.bytes > 0) rows.push_back(row(t, "backward", t.backward, t.backward_cost, roofline));
  }
  if (!a.json) return layer_rates(rows, roofline);
  for (ordered_json& r : rows) {
    r["network"] = spec.name();
    r["batch"] = a.batch;
    r["device"] = a.device;
    r["compute"] = a.compute;
    r["threads"] = a.threads;
    r["memcpy_bytes_per_s"] = roofline.bytes_per_s;
    r["product_flops_per_s"] = roofline.flops_per_s;
  }
  return json_text(rows, 2) + "\n";
}

}  // namespace lpsgd
