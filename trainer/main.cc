// The command line.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <new>

#include "comm/transport.h"
#include "core/error.h"
#include "trainer/bench/commands.h"
#include "trainer/commands.h"
#include "trainer/environment.h"

namespace {

int run(int argc, char** argv) {
  CLI::App app{"Data-parallel SGD with low-precision gradient exchange"};
  app.name("lpsgd");
  app.require_subcommand(1);
  app.set_version_flag("--version", lpsgd::version_text());
  app.footer("Several ranks: mpirun -n K lpsgd train CONFIG");

  const auto config_options = [](CLI::App* command, std::string& config,
                                 std::vector<std::string>& overrides) {
    command->add_option("config", config, "configuration file (YAML)")->required();
    command->add_option("--set", overrides, "override a key: a.b=value; may be repeated")
        ->type_name("KEY=VALUE")
        ->allow_extra_args(false);
  };

  const CLI::Validator whole_number(
      [](const std::string& text) {
        const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
        return digits && text.size() <= 18 ? std::string()
                                           : "expected a whole number from 0 on, got '" + text + "'";
      },
      "");

  lpsgd::TrainArguments train;
  train.command_line.assign(argv, argv + argc);
  CLI::App* train_command =
      app.add_subcommand("train", "train a network; under mpirun, one process is one rank");
  config_options(train_command, train.config, train.overrides);
  train_command->add_option("--out", train.out, "the run's folder (default runs/<config name>-<time>)")
      ->type_name("DIR");
  train_command->add_flag("--resume", train.resume, "go on from the newest checkpoint in --out");
  std::int64_t steps = -1;
  CLI::Option* steps_option =
      train_command
          ->add_option("--steps", steps,
                       "stop after N steps in all, without evaluation; 0 writes the initial weights")
          ->type_name("N")
          ->take_last()
          ->check(whole_number);

  train_command
      ->add_option(
          "--trace", train.trace,
          "write a Chrome trace of each rank into this folder (a million spans at most: use --steps)")
      ->type_name("DIR");

  lpsgd::ShowArguments show;
  CLI::App* show_command =
      app.add_subcommand("show", "layers and tensors: shape, parameters, FLOPs, codec, bytes on the wire");
  config_options(show_command, show.config, show.overrides);
  show_command->add_flag("--json", show.json, "print JSON");

  lpsgd::EvalArguments eval;
  CLI::App* eval_command = app.add_subcommand("eval", "loss and accuracy of a checkpoint");
  config_options(eval_command, eval.config, eval.overrides);
  eval_command
      ->add_option("--checkpoint", eval.checkpoint, "checkpoint folder, or a run's folder for its newest")
      ->required()
      ->type_name("DIR");
  eval_command->add_flag("--json", eval.json, "print JSON");

  lpsgd::QuantizeArguments quantize;
  CLI::App* quantize_command =
      app.add_subcommand("quantize", "tensors (steps, K, n) in, exchanged means (steps, n) out");
  quantize_command->add_option("in", quantize.in, "safetensors file of float32 tensors (steps, K, n)")
      ->required()
      ->type_name("IN.safetensors");
  quantize_command
      ->add_option("--codec", quantize.codec, "as in the configuration: '{kind: onebit, bucket: 64}'")
      ->required()
      ->type_name("CODEC");
  quantize_command->add_option("--out", quantize.out, "safetensors file to write")
      ->required()
      ->type_name("OUT.safetensors");
  quantize_command->add_option("--seed", quantize.seed, "of the dither")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{4294967295}));

  CLI::App* bench_command = app.add_subcommand("bench", "how fast the parts are");
  bench_command->require_subcommand(1);
  lpsgd::BenchCodecArguments bench_codec;
  CLI::App* bench_codec_command = bench_command->add_subcommand(
      "codec", "encode, decode and the owner's step on one core, or on a GPU, beside a copy");
  bench_codec_command->add_flag("--json", bench_codec.json, "print JSON");
  bench_codec_command->add_option("--device", bench_codec.device, "cpu, or cuda for the first GPU")
      ->capture_default_str()
      ->check(CLI::IsMember({"cpu", "cuda"}));
  bench_codec_command
      ->add_option("--elements", bench_codec.elements, "values of the array (default: 2^28, on a GPU 2^24)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 33));
  bench_codec_command->add_option("--repeats", bench_codec.repeats, "runs whose median counts")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1000}));
  bench_codec_command
      ->add_option("--codec", bench_codec.codecs,
                   "as in the configuration; may be repeated (default: all kinds)")
      ->type_name("CODEC")
      ->allow_extra_args(false);

  lpsgd::BenchExchangeArguments bench_exchange;
  CLI::App* bench_exchange_command = bench_command->add_subcommand(
      "exchange", "the exchange of one tensor, checked; ranks are threads, or processes under mpirun");
  bench_exchange_command->add_flag("--json", bench_exchange.json, "print JSON");
  bench_exchange_command
      ->add_option("--codec", bench_exchange.codecs, "as in the configuration; may be repeated")
      ->type_name("CODEC")
      ->allow_extra_args(false);
  bench_exchange_command
      ->add_option("--transport", bench_exchange.transport, "default: mpi under mpirun, threads otherwise")
      ->check(CLI::IsMember({"threads", "mpi", "nccl"}));
  bench_exchange_command
      ->add_option("--collective", bench_exchange.collective,
                   "as exchange.collective; allreduce takes codec none")
      ->capture_default_str()
      ->check(CLI::IsMember({"reduce_broadcast", "allreduce", "simulated"}));
  bench_exchange_command
      ->add_option("--device", bench_exchange.device, "where gradients lie and are coded; nccl: cuda")
      ->capture_default_str()
      ->check(CLI::IsMember({"cpu", "cuda"}));
  bench_exchange_command
      ->add_option("--ranks", bench_exchange.ranks, "of transport threads: 2,3,4 (default 2)")
      ->delimiter(',')
      ->check(CLI::Range(1, 256));
  const auto size_option = [&](const char* name, std::uint64_t& size, const char* help) {
    bench_exchange_command->add_option(name, size, help)
        ->type_name("SIZE")
        ->capture_default_str()
        ->transform(CLI::AsSizeValue(false))
        ->check(CLI::Range(std::uint64_t{4}, std::uint64_t{1} << 40));
  };
  size_option("--min", bench_exchange.min, "bytes of float32 gradients: 64K, 16M");
  size_option("--max", bench_exchange.max, "the largest size");
  bench_exchange_command->add_option("--factor", bench_exchange.factor, "from one size to the next")
      ->capture_default_str()
      ->check(CLI::Range(2, 1 << 20));
  bench_exchange_command->add_option("--repeats", bench_exchange.repeats, "steps whose median counts")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{100000}));
  bench_exchange_command
      ->add_option("--link", bench_exchange.link,
                   "emulated, as exchange.link: '{bandwidth: 1Gbit, latency: 50us}'")
      ->type_name("LINK");

  bool version_json = false;
  CLI::App* version_command = app.add_subcommand("version", "build, backends, library versions");
  version_command->add_flag("--json", version_json, "print JSON");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (lpsgd::launched_as().rank != 0) return e.get_exit_code() == 0 ? 0 : 2;  // rank 0 says it once
    return app.exit(e) == 0 ? 0 : 2;
  }
  const auto print = [](const std::string& text) {
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
      throw lpsgd::FileError("standard output cannot be written");
    return 0;
  };
  if (*train_command) {
    if (*steps_option) train.steps = steps;
    return lpsgd::train_command(train);
  }
  if (*show_command) return print(lpsgd::show_command(show));
  if (*eval_command) return print(lpsgd::eval_command(eval));
  if (*quantize_command) return print(lpsgd::quantize_command(quantize));
  if (*bench_codec_command) return print(lpsgd::bench_codec_command(bench_codec));
  if (*bench_exchange_command) return lpsgd::bench_exchange_command(bench_exchange, print);
  return print(version_json ? lpsgd::version_json() + "\n" : lpsgd::version_text());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const lpsgd::Error& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "lpsgd: error: %s\n", e.what());
    return e.exit_status();
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "lpsgd: error: out of memory\n");
    return 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "lpsgd: error: %s\n", e.what());
    return 1;
  }
}
