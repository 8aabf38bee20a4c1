// The loader makes batches of this rank's samples: it orders, augments and scales them. It does so on a
// thread of its own, ahead of the training step. The content of a batch depends on the seed, the epoch, the
// number of the global batch and the rank, never on timing.
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
  std::int64_t valid = 0;  // the first `valid` samples count; the rest of evaluation's last batch is zeros
};

struct LoaderOptions {
  std::int64_t global_batch = 128;
  int rank = 0, ranks = 1;
  std::uint32_t seed = 1;
  /// In training, samples are shuffled and augmented as configured, and a last partial batch is dropped. In
  /// evaluation, they are in order, and a last partial batch is kept.
  bool training = true;
  int prefetch = 3;  // batches that may be ready ahead
};

/// Pixels are scaled in float32 as in PyTorch: x/255, minus mean, over std, each rounded once.
///
/// In training, rank r takes the r-th contiguous part of each global batch. Sample s of epoch e is augmented
/// by draws of PhiloxSequence(seed, augmentation, s, e), whatever the batch and the rank: first the row and
/// the column of the crop in the padded image, both below(2 pad + 1), then mirrored if the next draw is odd.
///
/// In evaluation, rank r of K takes samples [floor(r n/K), floor((r+1) n/K)) in order.
class Loader {
 public:
  /// Throws ConfigError if the ranks do not divide the global batch, if a training set is smaller than one
  /// global batch, or if mean and std do not fit the images.
  Loader(std::shared_ptr<const Dataset> dataset, const DataOptions& data, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The number of batches of an epoch. Training: floor(size / global_batch). Evaluation: each sample belongs
  /// to one rank, and a rank has its samples in batches of global_batch / ranks, so that ranks may differ in
  /// number.
  std::int64_t batches() const;
  /// Starts epoch `epoch`, which counts from 0, at batch `first`, and begins to prefetch. May be called at
  /// any time; the rest of a running epoch is dropped.
  void start(std::int64_t epoch, std::int64_t first = 0);
  /// The next batch of the epoch, of which there are batches() - first. Rethrows an error of the loader's
  /// thread.
  Batch next();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The order of the samples in an epoch: a permutation that depends on seed and epoch only, or the identity
/// if `shuffle` is false.
std::vector<std::int64_t> epoch_order(std::int64_t size, bool shuffle, std::uint32_t seed,
                                      std::int64_t epoch);

}  // namespace lpsgd
