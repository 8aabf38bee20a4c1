// `lpsgd bench exchange`: one tensor through the exchange, in the columns of nccl-tests
// (https://github.com/NVIDIA/nccl-tests): codec x ranks x size, over threads or, under mpirun, over MPI or
// NCCL, with gradients on the CPU or on GPUs. Values are checked against an expectation that uses neither the
// exchange nor the owner's fused step.
#include "comm/exchange.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "comm/agree.h"
#include "comm/block_transport.h"
#include "comm/link.h"
#include "comm/nccl_transport.h"
#include "core/buffer.h"
#include "core/clock.h"
#include "core/device.h"
#include "core/error.h"
#include "quant/codec.h"
#include "trainer/agreement.h"
#include "trainer/bench/commands.h"
#include "trainer/bench/expectation.h"
#include "trainer/bench/samples.h"
#include "trainer/json_text.h"
#include "trainer/mpi_rank.h"
#include "trainer/run_config.h"

namespace lpsgd {

namespace {

using nlohmann::ordered_json;

constexpr std::uint32_t checked_steps = 2;  // with error feedback, the second needs the first one's residuals

const char* const default_exchanges[] = {
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
  int ranks_per_block = 1;  // 0: those of a machine
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

/// Sums and maxima over ranks. Collective.
double total(Transport& transport, double mine) {
  double sum = 0;
  for (const double one : transport.all_gather(mine)) sum += one;
  return sum;
}
double slowest(Transport& transport, double mine) {
  const std::vector<double> all = transport.all_gather(mine);
  return *std::max_element(all.begin(), all.end());
}
/// The sum over processes; if ranks are threads there is one.
double over_processes(Transport& transport, double mine) {
  return transport.name() == std::string_view("threads") ? mine : total(transport, mine);
}

/// Times of steps: seconds of the slowest rank, and processor time of this process. `copy`: of copying the
/// gradient's array, before each step.
struct StepTimes {
  std::vector<double> seconds, copy, cpu, copy_cpu;
};

/// One tensor of n values in the exchange, on one rank; calls are collective.
class TensorExchange {
 public:
  /// `over`: the transport of the exchange; `ranks`: the one for everything else.
  TensorExchange(Transport& ranks, Transport& over, const Sweep& sweep, StreamView stream,
                 const CodecSpec& spec, std::int64_t n)
      : ranks_(ranks),
        sweep_(sweep),
        stream_(stream),
        spec_(spec),
        n_(n),
        values_(stream.device(), static_cast<std::size_t>(n)),
        gradient_(stream.device(), static_cast<std::size_t>(n)),
        exchange_(over, {bench_tensor(n)}, {spec}, gradient_.view(), {0}, options()) {
    Buffer<float> host(static_cast<std::size_t>(n));
    fill_like_gradients(host, static_cast<std::uint32_t>(ranks.rank()));
    copy_values(values_.view(), host, stream_);
    stream_.synchronize();
  }

  /// Runs the first steps and returns how many values of this rank's results are wrong.
  std::uint64_t check() {
    const bool simulated = sweep_.collective == Collective::simulated;
    Buffer<float> result(static_cast<std::size_t>(n_)), expected(static_cast<std::size_t>(n_));
    std::optional<ExchangeExpectation> expectation;
    if (simulated)
      expectation.emplace(spec_, n_, RankBlocks{ranks_.size()}, ranks_.rank());
    else if (ranks_.rank() == 0)
      expectation.emplace(spec_, n_, exchange_.blocks(), std::nullopt);
    std::uint64_t wrong = 0;
    for (std::uint32_t s = 0; s < checked_steps; ++s) {
      StepTimes ignored;
      step(s, ignored);
      if (expectation) expectation->step(s, expected);
      if (!simulated) ranks_.broadcast(std::as_writable_bytes(expected.view()), 0);
      copy_values(result.view(), gradient_.view(), stream_);
      stream_.synchronize();
      for (std::size_t i = 0; i < result.size(); ++i) wrong += is_wrong(result[i], expected[i]);
    }
    exchange_.take_stats();
    return wrong;
  }

  /// Runs the timed steps, which follow those of check().
  StepTimes time() {
    StepTimes times;
    for (std::int64_t i = 0; i < sweep_.repeats; ++i)
      step(checked_steps + static_cast<std::uint32_t>(i), times);
    return times;
  }

  ExchangeStats take_stats() { return exchange_.take_stats(); }

 private:
  ExchangeOptions options() const {
    ExchangeOptions options;
    options.seed = ExchangeExpectation::seed;
    options.collective = sweep_.collective;
    if (options.collective == Collective::hierarchical)
      options.ranks_per_block = block_of(ranks_, sweep_.ranks_per_block, "--ranks-per-block").size;
    options.device = stream_.device();
    options.compute = stream_;
    return options;
  }

  void step(std::uint32_t number, StepTimes& times) {
    ranks_.barrier();
    const double t0 = now_seconds(), c0 = cpu_seconds(CpuTime::process);
    copy_values(gradient_.view(), values_.view(), stream_);
    stream_.synchronize();
    times.copy.push_back(slowest(ranks_, now_seconds() - t0));
    const double t1 = now_seconds(), c1 = cpu_seconds(CpuTime::process);
    exchange_.begin(number);
    exchange_.submit(0);
    exchange_.finish();
    stream_.synchronize();
    times.seconds.push_back(slowest(ranks_, now_seconds() - t1));
    times.cpu.push_back(cpu_seconds(CpuTime::process) - c1);
    times.copy_cpu.push_back(c1 - c0);
  }

  /// A transport's own sum may add in any order, so one rounding per rank is allowed.
  bool is_wrong(float value, float expected) const {
    if (sweep_.collective == Collective::allreduce)
      return !(std::abs(value - expected) <=
               static_cast<float>(ranks_.size()) * 0x1p-23f * max_like_gradients);
    return std::bit_cast<std::uint32_t>(value) != std::bit_cast<std::uint32_t>(expected);
  }

  Transport& ranks_;
  const Sweep& sweep_;
  const StreamView stream_;
  const CodecSpec& spec_;
  const std::int64_t n_;
  DeviceBuffer<float> values_, gradient_;
  Exchange exchange_;
};

/// NCCL's own sum of the same float32 array over ranks, for comparison; calls are collective.
class PlainSum {
 public:
  PlainSum(Transport& ranks, Transport& nccl, StreamView stream, std::int64_t n)
      : ranks_(ranks),
        nccl_(nccl),
        stream_(stream),
        values_(stream.device(), static_cast<std::size_t>(n)),
        sum_(stream.device(), static_cast<std::size_t>(n)) {
    Buffer<float> host(static_cast<std::size_t>(n));
    fill_like_gradients(host, static_cast<std::uint32_t>(ranks.rank()));
    copy_values(values_.view(), host, stream_);
    stream_.synchronize();
  }

  /// Seconds of the slowest rank.
  double step() {
    ranks_.barrier();
    copy_values(sum_.view(), values_.view(), stream_);
    stream_.synchronize();
    const double begin = now_seconds();
    nccl_.iallreduce(sum_.view());
    nccl_.stream().synchronize();
    return slowest(ranks_, now_seconds() - begin);
  }

  /// How many values of this rank's last sum are wrong. It may have been added in any order.
  std::uint64_t wrong() {
    Buffer<float> sum(sum_.size()), one(sum_.size());
    std::vector<double> expected(sum_.size());
    for (int r = 0; r < ranks_.size(); ++r) {
      fill_like_gradients(one, static_cast<std::uint32_t>(r));
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += static_cast<double>(one[i]);
    }
    copy_values(sum.view(), sum_.view(), stream_);
    stream_.synchronize();
    const double ranks = ranks_.size(),
                 bound = ranks * ranks * 0x1p-23 * static_cast<double>(max_like_gradients);
    std::uint64_t wrong = 0;
    for (std::size_t i = 0; i < expected.size(); ++i)
      wrong += !(std::abs(static_cast<double>(sum[i]) - expected[i]) <= bound);
    return wrong;
  }

 private:
  Transport& ranks_;
  Transport& nccl_;
  const StreamView stream_;
  DeviceBuffer<float> values_, sum_;
};

/// The most ranks that share one GPU. A collective call.
int ranks_per_gpu(Transport& transport, Device device) {
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  const std::vector<std::string> all =
      transport.all_gather_text(fmt::format("{} {}", host, cuda_device_info(device.index).bus));
  std::ptrdiff_t most = 0;
  for (const std::string& gpu : all) most = std::max(most, std::count(all.begin(), all.end(), gpu));
  return static_cast<int>(most);
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
    if (device_.is_cuda()) ranks_per_gpu_ = ranks_per_gpu(transport, device_);
  }

  void run() {
    for (const CodecSpec& spec : sweep_.codecs)
      for (const std::int64_t n : sweep_.elements) measure(spec, n);
  }

 private:
  void measure(const CodecSpec& spec, std::int64_t n) {
    Transport& on = over_ ? *over_ : transport_;
    const auto all = [&](double mine) { return total(transport_, mine); };
    TensorExchange exchange(transport_, on, sweep_, *stream_, spec, n);
    const std::uint64_t wrong = exchange.check();
    const std::uint64_t bytes_before = on.bytes_sent(), messages_before = on.messages_sent();
    const StepTimes times = exchange.time();
    const ExchangeStats stats = exchange.take_stats();
    const double steps = static_cast<double>(sweep_.repeats), ranks = transport_.size();
    const double encode = all(stats.encode) / ranks / steps, decode = all(stats.decode) / ranks / steps,
                 transfer = all(stats.transfer) / ranks / steps;
    const double bytes = all(static_cast<double>(on.bytes_sent() - bytes_before)) / steps;
    const double messages = all(static_cast<double>(on.messages_sent() - messages_before)) / steps;
    const double all_wrong = all(static_cast<double>(wrong));
    std::vector<double> sums;
    double wrong_sums = 0;
    if (sweep_.nccl) {
      PlainSum plain(transport_, on, *stream_, n);
      plain.step();
      wrong_sums = all(static_cast<double>(plain.wrong()));
      for (std::int64_t i = 0; i < sweep_.repeats; ++i) sums.push_back(plain.step());
    }
    const double cpu = over_processes(transport_, median(times.cpu)),
                 copy_cpu = over_processes(transport_, median(times.copy_cpu));
    if (transport_.rank() != 0) return;

    const double mine = median(times.seconds), array = 4.0 * static_cast<double>(n);
    const std::uint64_t encoded = wire_bytes(bench_tensor(n), spec, transport_.size());
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
        {"seconds_min", *std::min_element(times.seconds.begin(), times.seconds.end())},
        {"algorithm_bandwidth", array / mine},
        {"bus_bandwidth", array / mine * 2 * (ranks - 1) / ranks},
        {"wrong", static_cast<std::uint64_t>(all_wrong)},
        {"messages", static_cast<std::uint64_t>(messages)},
        {"wire_bytes", static_cast<std::uint64_t>(bytes)},
        {"ratio", sweep_.collective == Collective::hierarchical && transport_.size() > 1
                      ? 2 * (ranks - 1) * array / bytes
                      : array / static_cast<double>(encoded)},
        {"memcpy_seconds", median(times.copy)},
        {"memcpy_seconds_min", *std::min_element(times.copy.begin(), times.copy.end())},
        {"cpu_seconds", cpu},
        {"memcpy_cpu_seconds", copy_cpu},
        {"encode_seconds", encode},
        {"transfer_seconds", transfer},
        {"decode_seconds", decode}};
    if (sweep_.collective == Collective::reduce_broadcast)
      row["bytes_moved"] = static_cast<std::uint64_t>(memory_traffic(spec, n, transport_.size(), encoded));
    if (sweep_.nccl)
      row["nccl_allreduce"] = {{"seconds", median(sums)},
                               {"seconds_min", *std::min_element(sums.begin(), sums.end())},
                               {"algorithm_bandwidth", array / median(sums)},
                               {"bus_bandwidth", array / median(sums) * 2 * (ranks - 1) / ranks},
                               {"wrong", static_cast<std::uint64_t>(wrong_sums)}};
    if (ranks_per_gpu_ > 0) row["ranks_per_gpu"] = ranks_per_gpu_;
    if (ranks_per_gpu_ > 1) row["times_mean_nothing"] = true;
    if (sweep_.link.emulated()) row["link"] = to_text(sweep_.link);
    results_.push_back(std::move(row));
  }

  Transport& transport_;
  std::unique_ptr<Transport> over_;  // NCCL, or an emulated link
  const Sweep& sweep_;
  ordered_json& results_;  // rank 0's
  const Device device_;
  std::optional<Stream> stream_;
  int ranks_per_gpu_ = 0;  // 0: gradients are on the CPU
};

std::string exchange_rates(const ordered_json& results) {
  const bool sums = !results.empty() && results.front().contains("nccl_allreduce");
  const bool shared = std::any_of(results.begin(), results.end(),
                                  [](const ordered_json& r) { return r.contains("times_mean_nothing"); });
  std::string out = fmt::format(
      "{:>12} {:>12} {:>6} {:>8} {:>5} {:>11} {:>9} {:>9} {:>7} {:>9} {:>12} {:>7} {:>11}{}  {}\n", "size",
      "count", "type", "over", "ranks", "time", "algbw", "busbw", "#wrong", "messages", "wire", "ratio",
      "memcpy", sums ? fmt::format(" {:>13} {:>9}", "ncclAllReduce", "busbw") : "", "codec");
  out += fmt::format("{:>12} {:>12} {:>6} {:>8} {:>5} {:>11} {:>9} {:>9} {:>7} {:>9} {:>12} {:>7} {:>11}{}\n",
                     "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "", "(B)", "", "(us)",
                     sums ? fmt::format(" {:>13} {:>9}", "(us)", "(GB/s)") : "");
  for (const ordered_json& r : results) {
    std::string plain;
    if (sums)
      plain = fmt::format(" {:>13.2f} {:>9.3f}", 1e6 * r["nccl_allreduce"]["seconds"].get<double>(),
                          1e-9 * r["nccl_allreduce"]["bus_bandwidth"].get<double>());
    out += fmt::format(
        "{:>12} {:>12} {:>6} {:>8} {:>5} {:>11.2f} {:>9.3f} {:>9.3f} {:>7} {:>9} {:>12} {:>7.2f} "
        "{:>11.2f}{}  {}{}\n",
        r["size"].get<std::int64_t>(), r["elements"].get<std::int64_t>(), r["type"].get<std::string>(),
        r["transport"].get<std::string>(), r["ranks"].get<int>(), 1e6 * r["seconds"].get<double>(),
        1e-9 * r["algorithm_bandwidth"].get<double>(), 1e-9 * r["bus_bandwidth"].get<double>(),
        r["wrong"].get<std::uint64_t>(), r["messages"].get<std::uint64_t>(),
        r["wire_bytes"].get<std::uint64_t>(), r["ratio"].get<double>(),
        1e6 * r["memcpy_seconds"].get<double>(), plain, r["codec"].get<std::string>(),
        r.contains("times_mean_nothing") ? " *" : "");
  }
  out +=
      "time: median of the slowest rank's; memcpy: all ranks copying an array of this size at once; wire "
      "and messages: of all ranks, a step\n";
  if (sums) out += "ncclAllReduce: NCCL's own sum of the same float32 array, in place\n";
  if (shared)
    out += fmt::format("*: {} ranks share one GPU, so times and bandwidths mean nothing\n",
                       results.front()["ranks_per_gpu"].get<int>());
  return out;
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
  if (arguments.collective == "hierarchical") sweep.collective = Collective::hierarchical;
  if (arguments.ranks_per_block > 0 && sweep.collective != Collective::hierarchical)
    throw ConfigError("--ranks-per-block: has a meaning with --collective hierarchical only");
  sweep.ranks_per_block = arguments.ranks_per_block;
  if (arguments.collective == "allreduce") sweep.collective = Collective::allreduce;
  if (arguments.collective == "simulated") sweep.collective = Collective::simulated;
  const bool sums = sweep.collective == Collective::allreduce;
  std::vector<std::string> texts = arguments.codecs;
  if (texts.empty() && sums) texts.emplace_back("none");
  if (texts.empty()) texts.assign(std::begin(default_exchanges), std::end(default_exchanges));
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
  ordered_json results = ordered_json::array();
  const auto report = [&] {  // the status
    if (launched.rank != 0) return 0;
    print(arguments.json ? json_text(results, 2) + "\n" : exchange_rates(results));
    std::uint64_t wrong = 0;
    for (const ordered_json& r : results) {
      wrong += r["wrong"].get<std::uint64_t>();
      if (r.contains("nccl_allreduce")) wrong += r["nccl_allreduce"]["wrong"].get<std::uint64_t>();
    }
    if (wrong == 0) return 0;
    std::fprintf(stderr, "lpsgd: error: %llu values are wrong\n", static_cast<unsigned long long>(wrong));
    return 1;
  };
  if (over_mpi || launched.size > 1) {
    std::vector<Fact> facts = start_facts("bench exchange");
    facts.push_back({"the options", fmt::format("{}", fmt::join(arguments.options, " "))});
    return run_mpi_rank(make_mpi_transport(), facts, [&](Transport& transport) {
      transport.collectives().limits = {};
      collective_try(transport, [&] { sweep = read_sweep(arguments, over_mpi); });
      ExchangeBench(transport, sweep, results).run();
      return report();
    });
  }
  sweep = read_sweep(arguments, over_mpi);
  for (const int ranks : arguments.ranks.empty() ? std::vector{2} : arguments.ranks)
    run_thread_ranks(ranks, [&](Transport& transport) { ExchangeBench(transport, sweep, results).run(); });
  return report();
}

}  // namespace lpsgd
