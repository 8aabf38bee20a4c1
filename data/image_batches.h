// Batches of images.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "data/batch_source.h"

namespace lpsgd {

/// Images of the network's input shape, as ImageReader makes them. A batch holds their pixels and each
/// sample's place in the padded image and mirroring, which the network applies.
///
/// In training, rank r takes the r-th contiguous part of each global batch. Sample s of epoch e is augmented
/// by draws of PhiloxSequence(seed, augmentation, s, e), whatever the batch and the rank; data/image_reader.h
/// says in which order.
///
/// If bad samples are skipped, training uses the first readable one of the samples behind a bad one, with the
/// draws of that sample. In evaluation a bad sample is zeros with label -1.
///
/// In evaluation, rank r of K takes samples [floor(r n/K), floor((r+1) n/K)) in order, in batches of
/// global_batch / K, so that ranks may differ in their number of batches.
class ImageBatches final : public BatchSource {
 public:
  /// ConfigError if the options do not turn the images into the network's shape.
  ImageBatches(std::shared_ptr<const ImageDataset> dataset, const DataOptions& data,
               const BatchOptions& options);

  BatchShape shape() const override;
  std::int64_t batches() const override { return batches_; }
  void begin_epoch(std::int64_t epoch) override;
  BatchCounts counts(std::int64_t batch) const override;
  std::unique_ptr<Worker> make_worker() const override;
  void fill(Worker& worker, std::int64_t batch, std::int64_t position, const SampleView& out) const override;

 private:
  void read(std::int64_t sample, Worker& worker, const SampleView& out) const;
  void read_behind(std::int64_t bad, Worker& worker, const SampleView& out) const;
  std::int64_t sample_at(std::int64_t batch, std::int64_t position) const;

  std::shared_ptr<const ImageDataset> dataset_;
  BatchOptions options_;
  bool shuffle_, skip_bad_;
  ImageShape image_;  // the network's input
  ImageTransform transform_;
  std::int64_t local_;                    // samples of a batch on this rank
  std::int64_t begin_ = 0, samples_ = 0;  // evaluation: this rank's samples
  std::int64_t batches_ = 0, epoch_ = 0;
  std::vector<std::int64_t> order_;  // of the epoch's samples; evaluation: empty
  // Samples that could not be read in this epoch, so that many in a row are not read again for each of them.
  std::unique_ptr<std::atomic<bool>[]> known_bad_;  // null unless bad ones are skipped in training
};

}  // namespace lpsgd
