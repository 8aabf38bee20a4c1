// Batches of sequences: of speech, with one label a frame, and of text, where a token's label is the next
// token.
#pragma once

#include <memory>
#include <vector>

#include "data/batch_source.h"
#include "data/sequence_plan.h"

namespace lpsgd {

/// A sample of a batch is a piece of a sequence, from frame 0 of the network's input on. Behind it are zeros.
/// Its length may be 0: then the position has no sequence. data/sequence_plan.h says what is where: without
/// `data.truncate` whole sequences, with it streams whose state is carried from batch to batch; text is
/// always the latter. Rank r of K has positions [r B/K, (r + 1) B/K) of the global batch, in evaluation, too.
class SequenceBatches final : public BatchSource {
 public:
  /// `dataset` is a SequenceDataset or a TextDataset. ConfigError if sequences are longer than the network's
  /// input, if features or tokens do not fit it, or if a training set makes less than one batch.
  SequenceBatches(std::shared_ptr<const Dataset> dataset, const DataOptions& data,
                  const BatchOptions& options);

  BatchShape shape() const override;
  std::int64_t batches() const override { return plan_.batches(); }
  void begin_epoch(std::int64_t epoch) override;
  BatchCounts counts(std::int64_t batch) const override;
  std::unique_ptr<Worker> make_worker() const override { return std::make_unique<Worker>(); }
  void fill(Worker& worker, std::int64_t batch, std::int64_t position, const SampleView& out) const override;

 private:
  SequencePlan make_plan(std::int64_t epoch) const;

  std::shared_ptr<const Dataset> dataset_;
  const SequenceDataset* speech_;  // one of these is null
  const TextDataset* text_;
  BatchOptions options_;
  std::int64_t truncate_;  // frames; 0: whole sequences
  std::int64_t window_;    // batches
  bool shuffle_;
  std::vector<std::int64_t> lengths_;  // of the sequences; none for text
  std::int64_t frames_ = 0;            // of the network's input
  SequencePlan plan_;                  // of the epoch
};

/// The frames of the network's input that this data needs: `truncate`, or those of its longest sequence.
/// ConfigError if `dataset` is a text and `truncate` is 0.
std::int64_t frames_needed(const Dataset& dataset, const DataOptions& data);

}  // namespace lpsgd
