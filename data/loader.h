// The loader: batches of this rank's samples, decoded, augmented and scaled on a thread of its own, ahead of
// the training step. What a batch holds depends on (seed, epoch, global batch, rank's place in it), never on
// timing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "data/dataset.h"

namespace lpsgd {

/// A rank's part of a global batch. Valid until the next call of next() or start().
struct Batch {
  std::span<const float> images;         // (samples, H, W, C), (x/255 - mean)/std
  std::span<const std::int32_t> labels;  // (samples)
  std::int64_t valid = 0;  // samples that count; the rest is zero padding (evaluation's last batch)
};

struct LoaderOptions {
  std::int64_t global_batch = 128;
  int rank = 0, ranks = 1;
  std::uint32_t seed = 1;
  bool training =
      true;          // shuffle and augment as configured, drop the last partial batch; else in order, keep it
  int prefetch = 3;  // batches ready ahead
};

/// Pixels are scaled in float32 as PyTorch does, x/255 then minus mean then over std, each rounded once.
/// Training: rank r takes the r-th contiguous part of each global batch. Sample s of epoch e is cropped at
/// (below(2 pad + 1), below(2 pad + 1)), down then across, of the padded image, then mirrored if the next
/// draw is odd: draws of PhiloxSequence(seed, augmentation, s, e), whatever the batch, rank and number of
/// ranks. Evaluation: rank r takes samples [floor(r n/K), floor((r+1) n/K)), in order.
class Loader {
 public:
  /// ConfigError when ranks does not divide global_batch, when a training set is smaller than one global
  /// batch, or when mean and std do not fit the images.
  Loader(std::shared_ptr<const Dataset> dataset, const DataOptions& data, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Training: floor(size / global_batch). Evaluation: every rank's own samples (sample i belongs to exactly
  /// one rank) in batches of global_batch / ranks; ranks may differ in count.
  std::int64_t batches() const;
  /// Starts epoch `epoch` (from 0) at batch `first` (for resuming mid-epoch); prefetching begins. May be
  /// called at any time: what is left of a running epoch is dropped.
  void start(std::int64_t epoch, std::int64_t first = 0);
  /// The next batch of the epoch; rethrows what failed on the loader's thread. There are batches() - first.
  Batch next();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The order of an epoch's samples: a permutation that depends on (seed, epoch) only; the identity when
/// `shuffle` is false.
std::vector<std::int64_t> epoch_order(std::int64_t size, bool shuffle, std::uint32_t seed,
                                      std::int64_t epoch);

}  // namespace lpsgd
