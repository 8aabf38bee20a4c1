// What the batches of an epoch hold, and how one sample of a batch is made. There is one source for each kind
// of data. The Loader (data/loader.h) owns memory and threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/pixels.h"
#include "data/dataset.h"

namespace lpsgd {

/// What the composition of batches depends on.
struct BatchOptions {
  std::int64_t global_batch = 128;  // samples of all ranks together
  int rank = 0, ranks = 1;
  /// In how many parts a rank's samples of a batch come (gradient accumulation).
  std::int64_t micro_batches = 1;
  std::uint32_t seed = 1;
  /// In training, samples are shuffled and augmented as configured, and a last partial batch is dropped. In
  /// evaluation, they are in order, and a last partial batch is kept.
  bool training = true;
  /// The network's input for one sample: (height, width, channels), (frames, features) or (tokens). Empty: as
  /// the data set stores samples.
  std::vector<std::int64_t> input = {};
};

/// How a rank's part of a batch is laid out.
struct BatchShape {
  std::int64_t samples = 0;         // in a batch
  std::optional<ImageShape> image;  // the elements are an image's pixels; nothing: they are float32 values
  std::int64_t elements = 0;        // of a sample
  std::int64_t labels = 1;          // of a sample
  bool has_crops = false;
  bool has_lengths = false;    // of sequences, in frames
  bool has_continues = false;  // whether sequences continue those of the batch before
};

/// Where one sample of a batch is written. A pointer is null if the batch has no such part.
struct SampleView {
  std::uint8_t* pixels = nullptr;
  float* values = nullptr;
  std::int32_t* labels = nullptr;
  PixelCrop* crop = nullptr;
  std::int32_t* length = nullptr;
  std::int32_t* continues = nullptr;
};

struct BatchCounts {
  std::int64_t valid = 0;          // the rank's samples from this number on are zeros and do not count
  std::int64_t global_frames = 0;  // scored frames of the global batch; 0 for images
  std::int64_t micro_batch = 0;    // which part of the rank's batch this is
};

/// The batches of a rank, or their micro-batches one after the other. What is at position p of global batch b
/// of an epoch depends on seed, epoch, b, p and the data set, never on the number of ranks. Rank r of K has
/// the r-th of K contiguous parts of the positions.
class BatchSource {
 public:
  /// Memory that a thread keeps from sample to sample.
  struct Worker {
    virtual ~Worker() = default;
    /// fill() adds the error of each sample that could not be read and has been replaced or left out.
    std::vector<std::string> bad_samples;
  };

  virtual ~BatchSource() = default;
  virtual BatchShape shape() const = 0;
  /// Of each epoch.
  virtual std::int64_t batches() const = 0;
  /// Chooses the order of the epoch's samples. Never called at the same time as fill().
  virtual void begin_epoch(std::int64_t epoch) = 0;
  virtual BatchCounts counts(std::int64_t batch) const = 0;
  virtual std::unique_ptr<Worker> make_worker() const = 0;
  /// Writes sample `position` (on this rank) of batch `batch`. May be called from several threads at a time,
  /// with a worker each. A label of -1 does not count in loss and accuracy. Throws FileError if the sample
  /// cannot be read, unless bad samples are skipped.
  virtual void fill(Worker& worker, std::int64_t batch, std::int64_t position,
                    const SampleView& out) const = 0;
};

/// The source for this kind of data set. ConfigError if the ranks and their micro-batches do not divide the
/// global batch, if a training set is smaller than one global batch, or if network and data set do not fit.
std::unique_ptr<BatchSource> make_batch_source(std::shared_ptr<const Dataset> dataset,
                                               const DataOptions& data, const BatchOptions& options);

/// The order of the samples in an epoch: a permutation that depends on seed and epoch only, or the identity
/// if `shuffle` is false.
std::vector<std::int64_t> epoch_order(std::int64_t size, bool shuffle, std::uint32_t seed,
                                      std::int64_t epoch);

}  // namespace lpsgd
