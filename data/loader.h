// The loader makes batches of this rank's samples on threads of its own, ahead of the training step. What a
// batch holds is its source's decision (data/batch_source.h). It never depends on timing or on the number of
// threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/device.h"
#include "data/batch_source.h"

namespace lpsgd {

/// A rank's part of a global batch, or a micro-batch of it. A part that the batches do not have is empty.
/// Valid until the next call of next() or start(), and then until what `read` has recorded is done.
struct Batch {
  std::span<const std::uint8_t> pixels;              // (samples, H, W, C) of BatchShape::image
  std::span<const PixelCrop> crops;                  // (samples)
  std::span<const float> values;                     // (samples, elements)
  std::span<const std::int32_t> labels;              // (samples, labels)
  std::span<const std::int32_t> lengths, continues;  // (samples)
  std::int64_t valid = 0;                    // the first `valid` samples count; the rest of a batch is zeros
  std::span<const std::string> bad_samples;  // the errors of samples that were replaced or left out, in order
  std::int64_t global_frames = 0;            // scored frames of the global batch; 0 for images
  std::int64_t micro_batch = 0;              // BatchCounts::micro_batch
  /// To be recorded behind queued work that reads pixels or values.
  Event* read = nullptr;
};

struct LoaderOptions {
  int workers = 1;            // threads
  std::int64_t prefetch = 3;  // batches that may be ready ahead
  /// The device that copies pixels and values from the batches: their memory is page-locked for it.
  Device device = {};
  /// How long next() waits for samples before it throws StalledError; 0: without a limit. `limited_by`: the
  /// key that says so.
  double longest_wait = 0;
  const char* limited_by = "";
};

class Loader {
 public:
  /// Throws Error if the system starts no more threads.
  Loader(std::unique_ptr<BatchSource> source, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  const BatchShape& shape() const;
  /// The number of batches of an epoch, each micro-batch counted.
  std::int64_t batches() const;
  /// Starts epoch `epoch`, which counts from 0, at batch `first`, and begins to prefetch. May be called at
  /// any time; the rest of a running epoch is dropped.
  void start(std::int64_t epoch, std::int64_t first = 0);
  /// The next batch of the epoch, of which there are batches() - first. If a sample failed, throws the error
  /// of the first such sample of the batch. Throws FileError if it does not come in time.
  Batch next();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lpsgd
