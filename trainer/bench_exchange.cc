// `lpsgd bench exchange`: one tensor through the exchange, in the columns of nccl-tests
// (https://github.com/NVIDIA/nccl-tests): codec x ranks x size, over threads or, under mpirun, over MPI or
// NCCL, with gradients on the CPU or on GPUs. Values are checked against an expectation that uses neither the
// exchange nor the owner's fused step.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "comm/agree.h"
#include "comm/exchange.h"
#include "comm/link.h"
#include "comm/nccl_transport.h"
#include "core/buffer.h"
#include "core/clock.h"
#include "core/device.h"
#include "core/error.h"
#include "quant/codec.h"
#include "trainer/bench.h"
#include "trainer/bench_expectation.h"
#include "trainer/commands.h"
#include "trainer/mpi_rank.h"
#include "trainer/run_config.h"

namespace lpsgd {

namespace {

using nlohmann::ordered_json;

constexpr std::uint32_t checked_steps = 2;  // with error feedback, the second needs the first one's residuals

const char* const default_codecs[] = {
    "none",
    "fp16",
    "{kind: qsgd, bits: 8, bucket: 512}",
    "{kind: qsgd, bits: 4, bucket: 512}",
    "{kind: qsgd, bits: 2, bucket: 128}",
    "{kind: onebit, bucket: 64}",
    "{kind: topk, density: 0.01}",
};

struct Sweep {
  std::vector<CodecSpec> codecs;
  std::vector<std::int64_t> elements;
  LinkSpec link;
  Collective collective = Collective::reduce_broadcast;
  std::string collective_name;
  DeviceChoice device = DeviceChoice::cpu;
  bool nccl = false;
  std::int64_t repeats = 1;
};

/// What one rank reads and writes in a step: the table of passes in docs/exchange.md, over threads.
double memory_traffic(const CodecSpec& spec, std::int64_t n, int ranks, std::uint64_t encoded) {
  const double array = 4.0 * static_cast<double>(n), w = static_cast<double>(encoded), k = ranks;
  if (spec.is_none() && ranks == 1) return array;
  const double coding = array + w;                  // encode, and its mirror, decode
  const double messages = 2 * 2 * (k - 1) / k * w;  // both rounds, one copy each
  const double reduce = w + w / k;
  const double residuals = spec.error_feedback ? 2 * array * (1 + 1 / k) : 0;
  return 2 * coding + messages + reduce + residuals;
}

/// Processor time of this process: what other programs do adds nothing to it.
double processor_seconds() {
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

/// One rank's part in all measurements; calls are collective.
class ExchangeBench {
 public:
  ExchangeBench(Transport& transport, const Sweep& sweep, ordered_json& results)
      : transport_(transport),
        sweep_(sweep),
        results_(results),
        device_(device_of({.device = sweep.device}, transport.local_rank())) {
    collective_try(transport, [&] {
      stream_.emplace(device_);
      if (sweep.nccl) over_ = make_nccl_transport(transport, device_);
      if (sweep.link.emulated()) over_ = make_linked_transport(transport, sweep.link);
    });
  }

  void run() {
    for (const CodecSpec& spec : sweep_.codecs)
      for (const std::int64_t n : sweep_.elements) measure(spec, n);
  }

 private:
  void measure(const CodecSpec& spec, std::int64_t n) {
    Transport& on = over_ ? *over_ : transport_;
    const auto size = static_cast<std::size_t>(n);
    const bool simulated = sweep_.collective == Collective::simulated;
    Buffer<float> result(size), expected(size);
    DeviceBuffer<float> values(device_, size), gradient(device_, size);
    fill_like_gradients(result, static_cast<std::uint32_t>(transport_.rank()));
    copy_values(values.view(), result, *stream_);
    stream_->synchronize();
    ExchangeOptions options;
    options.seed = ExchangeExpectation::seed;
    options.collective = sweep_.collective;
    options.device = device_;
    options.compute = *stream_;
    Exchange exchange(on, {bench_tensor(n)}, {spec}, gradient.view(), {0}, options);
    double seconds = 0, copy = 0, cpu = 0, copy_cpu = 0;  // of the last step
    const auto step = [&](std::uint32_t number) {
      transport_.barrier();
      const double t0 = now_seconds(), c0 = processor_seconds();
      copy_values(gradient.view(), values.view(), *stream_);
      stream_->synchronize();
      copy = slowest(now_seconds() - t0);
      const double t1 = now_seconds(), c1 = processor_seconds();
      exchange.begin(number);
      exchange.submit(0);
      exchange.finish();
      stream_->synchronize();
      seconds = slowest(now_seconds() - t1);
      cpu = processor_seconds() - c1;
      copy_cpu = c1 - c0;
    };

    std::uint64_t wrong = 0;
    {
      std::optional<ExchangeExpectation> expectation;
      if (simulated)
        expectation.emplace(spec, n, transport_.size(), transport_.rank());
      else if (transport_.rank() == 0)
        expectation.emplace(spec, n, transport_.size(), std::nullopt);
      for (std::uint32_t s = 0; s < checked_steps; ++s) {
        step(s);
        if (expectation) expectation->step(s, expected);
        if (!simulated) transport_.broadcast(std::as_writable_bytes(expected.view()), 0);
        copy_values(result.view(), gradient.view(), *stream_);
        stream_->synchronize();
        for (std::size_t i = 0; i < size; ++i) wrong += is_wrong(result[i], expected[i]);
      }
    }
    exchange.take_stats();
    const std::uint64_t bytes_before = on.bytes_sent(), messages_before = on.messages_sent();
    std::vector<double> times, copies, cpus, copy_cpus;
    for (std::int64_t i = 0; i < sweep_.repeats; ++i) {
      step(checked_steps + static_cast<std::uint32_t>(i));
      times.push_back(seconds);
      copies.push_back(copy);
      cpus.push_back(cpu);
      copy_cpus.push_back(copy_cpu);
    }
    const ExchangeStats stats = exchange.take_stats();
    const double steps = static_cast<double>(sweep_.repeats), ranks = transport_.size();
    const double encode = total(stats.encode) / ranks / steps, decode = total(stats.decode) / ranks / steps,
                 transfer = total(stats.transfer) / ranks / steps;
    const double bytes = total(static_cast<double>(on.bytes_sent() - bytes_before)) / steps;
    const double messages = total(static_cast<double>(on.messages_sent() - messages_before)) / steps;
    const double all_wrong = total(static_cast<double>(wrong));
    const double all_cpu = over_processes(median(cpus)), all_copy_cpu = over_processes(median(copy_cpus));
    if (transport_.rank() != 0) return;

    const double mine = median(times), array = 4.0 * static_cast<double>(n), memcpy_seconds = median(copies);
    const std::uint64_t encoded = wire_bytes(bench_tensor(n), spec, simulated ? 1 : transport_.size());
    ordered_json row{
        {"name", fmt::format("exchange {} over {}, {} ranks", to_text(spec), on.name(), transport_.size())},
        {"codec", to_text(spec)},
        {"collective", sweep_.collective_name},
        {"transport", on.name()},
        {"device", device_.text()},
        {"ranks", transport_.size()},
        {"size", 4 * n},
        {"elements", n},
        {"type", "float"},
        {"seconds", mine},
        {"seconds_min", *std::min_element(times.begin(), times.end())},
        {"algorithm_bandwidth", array / mine},
        {"bus_bandwidth", array / mine * 2 * (ranks - 1) / ranks},
        {"wrong", static_cast<std::uint64_t>(all_wrong)},
        {"messages", static_cast<std::uint64_t>(messages)},
        {"wire_bytes", static_cast<std::uint64_t>(bytes)},
        {"ratio", array / static_cast<double>(encoded)},
        {"memcpy_seconds", memcpy_seconds},
        {"memcpy_seconds_min", *std::min_element(copies.begin(), copies.end())},
        {"cpu_seconds", all_cpu},
        {"memcpy_cpu_seconds", all_copy_cpu},
        {"encode_seconds", encode},
        {"transfer_seconds", transfer},
        {"decode_seconds", decode}};
    if (sweep_.collective == Collective::reduce_broadcast)
      row["bytes_moved"] = static_cast<std::uint64_t>(memory_traffic(spec, n, transport_.size(), encoded));
    if (sweep_.link.emulated()) row["link"] = to_text(sweep_.link);
    results_.push_back(std::move(row));
  }

  /// A transport's own sum adds in an order of its own.
  bool is_wrong(float value, float expected) const {
    if (sweep_.collective == Collective::allreduce)
      return !(std::abs(value - expected) <=
               static_cast<float>(transport_.size()) * 0x1p-23f * most_like_gradients);
    return std::bit_cast<std::uint32_t>(value) != std::bit_cast<std::uint32_t>(expected);
  }

  double slowest(double mine) {
    const std::vector<double> all = transport_.all_gather(mine);
    return *std::max_element(all.begin(), all.end());
  }
  /// The sum over processes, of which there is one where ranks are threads.
  double over_processes(double mine) {
    return transport_.name() == std::string_view("threads") ? mine : total(mine);
  }
  double total(double mine) {
    double sum = 0;
    for (const double one : transport_.all_gather(mine)) sum += one;
    return sum;
  }

  Transport& transport_;
  std::unique_ptr<Transport> over_;  // NCCL, or an emulated link
  const Sweep& sweep_;
  ordered_json& results_;  // rank 0's
  const Device device_;
  std::optional<Stream> stream_;
};

std::string table(const ordered_json& results) {
  std::string out =
      fmt::format("{:>12} {:>12} {:>6} {:>8} {:>5} {:>11} {:>9} {:>9} {:>7} {:>9} {:>12} {:>7} {:>11}  {}\n",
                  "size", "count", "type", "over", "ranks", "time", "algbw", "busbw", "#wrong", "messages",
                  "wire", "ratio", "memcpy", "codec");
  out += fmt::format("{:>12} {:>12} {:>6} {:>8} {:>5} {:>11} {:>9} {:>9} {:>7} {:>9} {:>12} {:>7} {:>11}\n",
                     "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "", "(B)", "", "(us)");
  for (const ordered_json& r : results)
    out += fmt::format(
        "{:>12} {:>12} {:>6} {:>8} {:>5} {:>11.2f} {:>9.3f} {:>9.3f} {:>7} {:>9} {:>12} {:>7.2f} {:>11.2f}  "
        "{}\n",
        r["size"].get<std::int64_t>(), r["elements"].get<std::int64_t>(), r["type"].get<std::string>(),
        r["transport"].get<std::string>(), r["ranks"].get<int>(), 1e6 * r["seconds"].get<double>(),
        1e-9 * r["algorithm_bandwidth"].get<double>(), 1e-9 * r["bus_bandwidth"].get<double>(),
        r["wrong"].get<std::uint64_t>(), r["messages"].get<std::uint64_t>(),
        r["wire_bytes"].get<std::uint64_t>(), r["ratio"].get<double>(),
        1e6 * r["memcpy_seconds"].get<double>(), r["codec"].get<std::string>());
  return out +
         "time: median of the slowest rank's; memcpy: all ranks copying an array of this size at once; wire "
         "and messages: of all ranks, a step\n";
}

Sweep read_sweep(const BenchExchangeArguments& arguments, bool over_mpi) {
  if (over_mpi && !arguments.ranks.empty())
    throw ConfigError("--ranks: is for transport threads; over mpi and nccl, mpirun -n says how many");
  if (!over_mpi && launched_as().size > 1)
    throw ConfigError("--transport threads: its ranks are threads of one process: start it without mpirun");
  if (arguments.max < arguments.min)
    throw ConfigError(fmt::format("--max: {} is less than --min {}", arguments.max, arguments.min));
  Sweep sweep;
  sweep.nccl = arguments.transport == "nccl";
  sweep.device = sweep.nccl || arguments.device == "cuda" ? DeviceChoice::cuda : DeviceChoice::cpu;
  std::string missing = sweep.nccl ? nccl_missing() : "";
  if (missing.empty() && sweep.device == DeviceChoice::cuda) missing = cuda_devices().reason;
  if (!missing.empty())
    throw ConfigError(fmt::format("{}: {}", sweep.nccl ? "--transport nccl" : "--device cuda", missing));
  if (sweep.nccl && !arguments.link.empty())
    throw ConfigError("--link: cannot be emulated over nccl; use mpi or threads");
  sweep.collective_name = arguments.collective;
  if (arguments.collective == "allreduce") sweep.collective = Collective::allreduce;
  if (arguments.collective == "simulated") sweep.collective = Collective::simulated;
  const bool sums = sweep.collective == Collective::allreduce;
  std::vector<std::string> texts = arguments.codecs;
  if (texts.empty() && sums) texts.emplace_back("none");
  if (texts.empty()) texts.assign(std::begin(default_codecs), std::end(default_codecs));
  for (const std::string& text : texts) {
    sweep.codecs.push_back(parse_codec(config::parse_text(text, "--codec"), "codec"));
    if (sums && !sweep.codecs.back().is_none())
      throw ConfigError(fmt::format("--codec {}: allreduce sums float32 and takes codec none only", text));
  }
  for (std::uint64_t size = arguments.min; size <= arguments.max; size *= arguments.factor)
    sweep.elements.push_back(static_cast<std::int64_t>(size / sizeof(float)));
  if (!arguments.link.empty()) config::read(config::parse_text(arguments.link, "--link"), "link", sweep.link);
  sweep.repeats = arguments.repeats;
  return sweep;
}

}  // namespace

int bench_exchange_command(const BenchExchangeArguments& arguments,
                           const std::function<void(const std::string&)>& print) {
  const LaunchedAs launched = launched_as();
  const bool over_mpi = arguments.transport.empty() ? launched.size > 1 : arguments.transport != "threads";
  Sweep sweep;
  try {
    sweep = read_sweep(arguments, over_mpi);
  } catch (const ConfigError&) {
    if (launched.rank == 0) throw;
    return 2;
  }
  ordered_json results = ordered_json::array();
  const auto report = [&] {  // the status
    if (launched.rank != 0) return 0;
    print(arguments.json ? results.dump(2) + "\n" : table(results));
    std::uint64_t wrong = 0;
    for (const ordered_json& r : results) wrong += r["wrong"].get<std::uint64_t>();
    if (wrong == 0) return 0;
    std::fprintf(stderr, "lpsgd: error: %llu values are wrong\n", static_cast<unsigned long long>(wrong));
    return 1;
  };
  if (over_mpi)
    return run_mpi_rank(make_mpi_transport(), [&](Transport& transport) {
      ExchangeBench(transport, sweep, results).run();
      return report();
    });
  for (const int ranks : arguments.ranks.empty() ? std::vector{2} : arguments.ranks)
    run_thread_ranks(ranks, [&](Transport& transport) { ExchangeBench(transport, sweep, results).run(); });
  return report();
}

}  // namespace lpsgd
