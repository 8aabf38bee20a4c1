// `lpsgd bench`: how fast the parts are, one function per command. They throw core/error.h's types.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "nn/plan_search.h"

namespace lpsgd {

struct BenchCodecArguments {
  std::vector<std::string> codecs;  // empty: some of every kind
  std::string device = "cpu";       // or "cuda"
  std::int64_t elements = 0;        // 0: 2^28, on a GPU 2^24
  std::int64_t repeats = 5;
  bool json = false;
};
/// Encode, decode and the owner's step of each codec on one core, or on the GPU, beside a copy.
std::string bench_codec_command(const BenchCodecArguments& arguments);

struct BenchExchangeArguments {
  std::vector<std::string> codecs;  // empty: a default selection
  std::string transport;            // empty: mpi under mpirun, threads otherwise
  std::string device = "cpu";       // or "cuda"; nccl takes cuda
  std::string collective = "reduce_broadcast";
  int ranks_per_block = 0;  // of hierarchical; 0: those of a machine
  std::vector<int> ranks;   // of transport threads; empty: 2
  std::uint64_t min = 4096, max = std::uint64_t{1} << 26, factor = 4;  // bytes of float32
  std::int64_t repeats = 10;
  std::string link;  // as exchange.link; empty: none
  bool json = false;
  std::vector<std::string> options;  // as given
};
/// The exchange of one tensor: codec x ranks x size, with its results checked. Under mpirun all ranks take
/// part and rank 0 prints. Returns the process's exit status: 1 where values were wrong.
int bench_exchange_command(const BenchExchangeArguments& arguments,
                           const std::function<void(const std::string&)>& print);

/// ResNet-20 of configs/networks, where this program was built.
extern const char* const default_network;

struct BenchLayersArguments {
  std::string network = default_network;
  std::vector<std::string> overrides;
  std::string device = "cpu";  // or "cuda"
  std::string compute = "fp32";
  std::string recompute = "none";
  std::int64_t batch = 128;
  std::int64_t frames = 0;  // of a network that leaves them open
  std::int64_t repeats = 10;
  std::int64_t warm_up = 3;  // steps before them
  int threads = 1;
  std::int64_t copied = 0;  // bytes of the array that is copied; 0: 2^28
  std::int64_t side = 0;    // of the matrices that are multiplied; 0: the fastest of some
  double search_seconds = default_search_seconds;
  bool json = false;
};
/// Each operation of a network's training step: time, bytes, operations, and the part of its roofline.
std::string bench_layers_command(const BenchLayersArguments& arguments);

struct BenchLoaderArguments {
  std::vector<std::string> data;  // folders of images; empty: generated ones
  std::vector<int> workers{2};
  std::int64_t images = 512;  // most of a pass
  std::int64_t repeats = 5;
  bool cpu_time = false;  // processor time where one thread works, for machines that are never idle
  bool json = false;
};
/// Decoding, crops and colours of images on one core beside OpenCV's decoder, several workers, a batch of
/// CIFAR images.
std::string bench_loader_command(const BenchLoaderArguments& arguments);

}  // namespace lpsgd
