// The commands of `lpsgd`, one function each. They throw core/error.h's types; main() prints and picks the
// status.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trainer/progress.h"

namespace lpsgd {

struct TrainArguments {
  std::string config;
  std::vector<std::string> overrides;  // a.b=value
  std::string out;                     // empty: runs/<name>-<time>
  bool resume = false;
  bool resume_required = false;  // a folder without a checkpoint is refused; implies resume
  std::optional<std::int64_t> steps;
  std::string trace;  // folder; empty: none
  ProgressMode progress = ProgressMode::automatic;
  std::vector<std::string> command_line;
};

/// Trains; prints its own errors where ranks must agree on one. Returns the process's exit status.
int train_command(const TrainArguments& arguments);

struct ShowArguments {
  std::string config;
  std::vector<std::string> overrides;
  bool json = false;
};
/// Every layer and tensor: shape, parameters, FLOPs, codec, bytes on the wire.
std::string show_command(const ShowArguments& arguments);

struct EvalArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string checkpoint;
  bool json = false;
};
/// Loss, top-1 and top-5 of a checkpoint on the test split.
std::string eval_command(const EvalArguments& arguments);

struct QuantizeArguments {
  std::string in, codec, out;
  std::int64_t seed = 1;
};
/// Tensors (steps, K, n) in, exchanged means (steps, n) out: K ranks' gradients through the real exchange.
std::string quantize_command(const QuantizeArguments& arguments);

struct BenchCodecArguments {
  std::vector<std::string> codecs;  // empty: a choice of all kinds
  std::string device = "cpu";       // or "cuda"
  std::int64_t elements = 0;        // 0: 2^28, on a GPU 2^24
  std::int64_t repeats = 5;
  bool json = false;
};
/// Encode, decode and the owner's step of each codec on one core, or on the GPU, beside a copy.
std::string bench_codec_command(const BenchCodecArguments& arguments);

struct BenchExchangeArguments {
  std::vector<std::string> codecs;  // none: a choice of them
  std::string transport;            // empty: mpi under mpirun, threads otherwise
  std::string device = "cpu";       // or cuda; nccl takes cuda
  std::string collective = "reduce_broadcast";
  std::vector<int> ranks;                                              // of transport threads; empty: 2
  std::uint64_t min = 4096, max = std::uint64_t{1} << 26, factor = 4;  // bytes of float32
  std::int64_t repeats = 10;
  std::string link;  // as exchange.link; empty: none
  bool json = false;
};
/// The exchange of one tensor: codec x ranks x size, checked against an expectation of its own. Under mpirun
/// all ranks take part and rank 0 prints; errors that they share are told here. Returns the process's exit
/// status: 1 where values were wrong.
int bench_exchange_command(const BenchExchangeArguments& arguments,
                           const std::function<void(const std::string&)>& print);

}  // namespace lpsgd
