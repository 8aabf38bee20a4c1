// The sections `train`, `exchange`, `checkpoint` and `metrics` of a run's configuration.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "comm/exchange.h"
#include "comm/link.h"
#include "core/config.h"
#include "nn/network.h"
#include "quant/policy.h"
#include "trainer/bit_flip.h"

namespace lpsgd {

/// `automatic`: a GPU if there is one, else the CPU.
enum class DeviceChoice : std::uint8_t { automatic, cpu, cuda };

struct TrainOptions {
  std::int64_t epochs = 1;
  std::int64_t batch_size = 128;  // global: every rank takes batch_size / K samples
  /// The batch size by number of ranks, if the configuration has a table. `batch_size` is then that of the
  /// fewest ranks until resolve_ranks() has taken the run's.
  std::map<std::int64_t, std::int64_t> batch_sizes = {};
  std::int64_t micro_batches = 1;  // of each rank, in a step (gradient accumulation)
  std::int64_t seed = 1;
  DeviceChoice device = DeviceChoice::automatic;
  Compute compute = Compute::fp32;
  Recompute recompute = Recompute::none;
  double label_smoothing = 0;
  std::vector<std::string> freeze = {};  // layers and blocks that are not trained
  bool deterministic = false;            // on a GPU: the same bits in every run, at some cost in speed
  double search_seconds = default_search_seconds;  // on a GPU: of all searches for algorithms
  bool cuda_graphs = true;                         // on a GPU
  Branches branches = Branches::measured;          // of CUDA graphs
  std::int64_t threads = 0;                        // per rank; 0: the cores of this node divided by its ranks
};
void fields(config::Visitor& visitor, TrainOptions& options);

struct CheckpointOptions {
  std::int64_t every_epochs = 10;  // 0: only at the end
  std::int64_t every_steps = 0;    // 0: not by steps
  double every_minutes = 15;       // since the last one; 0: not by time
  std::int64_t keep = 2;           // checkpoints kept, the newest
};
void fields(config::Visitor& visitor, CheckpointOptions& options);

struct MetricsOptions {
  bool codec_error = false;  // per tensor, what coding loses; costs a pass over the gradients
};
void fields(config::Visitor& visitor, MetricsOptions& options);

enum class TransportKind : std::uint8_t { mpi, nccl, threads };
enum class DevicePointers : std::uint8_t { automatic, yes, no };

struct ExchangeConfig {
  TransportKind transport = TransportKind::mpi;
  Collective collective = Collective::reduce_broadcast;
  std::int64_t ranks_per_block = 0;  // of hierarchical; 0: those of a machine
  PolicySpec policy;
  double warmup_epochs = 0;  // in which gradients go as float32
  bool overlap = true;
  std::int64_t ranks = 1;                                      // transport: threads only
  double timeout = 600;                                        // seconds without progress; 0: no limit
  double timeout_outside_step = 1800;                          // more: ranks read and evaluate unequally long
  LinkSpec link;                                               // emulated; none by default
  DevicePointers device_pointers = DevicePointers::automatic;  // auto: if the MPI library takes them
  BitFlip inject;                                              // none by default
};
void fields(config::Visitor& visitor, ExchangeConfig& options);
/// The epochs of the codecs' warm-up; 0 if the tensors have none.
double codec_warmup(const ExchangeConfig& options, const std::vector<CodecSpec>& codecs);
/// "1 epoch", or empty.
std::string codec_warmup_text(const ExchangeConfig& options, const std::vector<CodecSpec>& codecs);

}  // namespace lpsgd
