// The commands of `lpsgd bench` and their options.
#include <memory>

#include "trainer/bench/commands.h"
#include "trainer/command_line.h"

namespace lpsgd {

namespace {

using Words = std::vector<std::string>;

void add_codecs(CLI::App& app, std::vector<std::string>& codecs, const char* help) {
  app.add_option("--codec", codecs, help)->type_name("CODEC")->allow_extra_args(false);
}

RunCommand declare_codec(CLI::App& app, const Words&) {
  const auto bench = std::make_shared<BenchCodecArguments>();
  app.add_flag("--json", bench->json, "print JSON");
  app.add_option("--device", bench->device, "cpu, or cuda for the first GPU")
      ->capture_default_str()
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--elements", bench->elements, "values of the array (default: 2^28, on a GPU 2^24)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 33));
  app.add_option("--repeats", bench->repeats, "runs whose median counts")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1000}));
  add_codecs(app, bench->codecs, "as in the configuration; may be repeated (default: all kinds)");
  return [bench] { return print(bench_codec_command(*bench)); };
}

RunCommand declare_exchange(CLI::App& app, const Words& words) {
  const auto bench = std::make_shared<BenchExchangeArguments>();
  bench->options.assign(words.begin() + 1, words.end());
  app.add_flag("--json", bench->json, "print JSON");
  add_codecs(app, bench->codecs, "as in the configuration; may be repeated");
  app.add_option("--transport", bench->transport, "default: mpi under mpirun, threads otherwise")
      ->check(CLI::IsMember({"threads", "mpi", "nccl"}));
  app.add_option("--collective", bench->collective, "as exchange.collective; allreduce takes codec none")
      ->capture_default_str()
      ->check(CLI::IsMember({"reduce_broadcast", "hierarchical", "allreduce", "simulated"}));
  app.add_option("--ranks-per-block", bench->ranks_per_block,
                 "of collective hierarchical, as exchange.ranks_per_block (default: the ranks of a machine)")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--device", bench->device, "where gradients lie and are coded; nccl: cuda")
      ->capture_default_str()
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--ranks", bench->ranks, "of transport threads: 2,3,4 (default 2)")
      ->delimiter(',')
      ->check(CLI::Range(1, 256));
  const auto size_option = [&](const char* name, std::uint64_t& size, const char* help) {
    app.add_option(name, size, help)
        ->type_name("SIZE")
        ->capture_default_str()
        ->transform(CLI::AsSizeValue(false))
        ->check(CLI::Range(std::uint64_t{4}, std::uint64_t{1} << 40));
  };
  size_option("--min", bench->min, "bytes of float32 gradients: 64K, 16M");
  size_option("--max", bench->max, "the largest size");
  app.add_option("--factor", bench->factor, "from one size to the next")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 20));
  app.add_option("--repeats", bench->repeats, "steps whose median counts")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{100000}));
  app.add_option("--link", bench->link, "emulated, as exchange.link: '{bandwidth: 1Gbit, latency: 50us}'")
      ->type_name("LINK");
  return [bench] { return bench_exchange_command(*bench, print); };
}

RunCommand declare_layers(CLI::App& app, const Words&) {
  const auto bench = std::make_shared<BenchLayersArguments>();
  app.add_option("NETWORK", bench->network,
                 "a network file or a configuration; without one, ResNet-20 of configs/networks");
  add_override_option(app, bench->overrides);
  app.add_flag("--json", bench->json, "print JSON");
  app.add_option("--device", bench->device, "cpu, or cuda for the first GPU")
      ->capture_default_str()
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--search-seconds", bench->search_seconds, "as train.search_seconds")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1200.0));
  app.add_option("--compute", bench->compute, "as train.compute")
      ->capture_default_str()
      ->check(CLI::IsMember({"fp32", "tf32", "bf16"}));
  app.add_option("--recompute", bench->recompute, "as train.recompute")
      ->capture_default_str()
      ->check(CLI::IsMember({"none", "batch_norm"}));
  const auto size_option = [&](const char* name, std::int64_t& size, const char* help) {
    return app.add_option(name, size, help)->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
  };
  size_option("--batch", bench->batch, "samples")->capture_default_str();
  size_option("--frames", bench->frames, "of a network that leaves their number open");
  size_option("--repeats", bench->repeats, "steps whose median counts")->capture_default_str();
  app.add_option("--warm-up", bench->warm_up, "steps before these")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1'000'000}));
  app.add_option("--threads", bench->threads, "on the CPU")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  size_option("--copied", bench->copied, "bytes of the array whose copy gives the bandwidth (default: 2^28)");
  size_option("--side", bench->side,
              "of the matrices whose product gives the arithmetic's speed (default: the fastest of some)");
  return [bench] { return print(bench_layers_command(*bench)); };
}

RunCommand declare_loader(CLI::App& app, const Words&) {
  const auto bench = std::make_shared<BenchLoaderArguments>();
  app.add_flag("--json", bench->json, "print JSON");
  app.add_option("--data", bench->data,
                 "folders of images (default: generated JPEG files of 500 x 375 pixels)")
      ->type_name("FOLDER");
  app.add_option("--images", bench->images, "the most that are read in a pass; more are evenly chosen")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1'000'000}));
  app.add_option("--workers", bench->workers,
                 "of a loader, compared with as many processes: 2,4 (default 2); 0: no loader is measured")
      ->delimiter(',')
      ->check(CLI::Range(0, 256));
  app.add_option("--repeats", bench->repeats, "passes whose median counts")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1000}));
  app.add_flag("--cpu-time", bench->cpu_time, "processor time where one thread works: for busy machines");
  return [bench] { return print(bench_loader_command(*bench)); };
}

}  // namespace

std::span<const Command> bench_commands() {
  static const Command commands[] = {
      {"codec", "encode, decode and the owner's step on one core, or on a GPU, beside a copy", declare_codec},
      {"exchange",
       "the exchange of one tensor, checked; ranks are threads, or processes under mpirun",
       declare_exchange,
       {},
       true},
      {"layers", "each operation of a network's training step beside its roofline, on the CPU or a GPU",
       declare_layers},
      {"loader", "images from files to samples on one core, beside OpenCV's decoder, and on several workers",
       declare_loader},
  };
  return commands;
}

}  // namespace lpsgd
