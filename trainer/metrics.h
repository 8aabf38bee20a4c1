// A run's report of each epoch: one JSON object, appended to metrics.jsonl and flushed, and a line for the
// terminal.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/epoch_sums.h"
#include "trainer/run_data.h"

namespace lpsgd {

/// Metrics of images count samples. Those of sequences count frames (of text, tokens); `samples` is then the
/// number of sequences, or of pieces if data.truncate cuts them.
struct EpochRecord {
  DataKind kind = DataKind::images;
  std::int64_t epoch = 0, step = 0;  // finished epochs, steps since the start
  double lr = 0;                     // of the last step
  BatchMetrics train, validation;    // sums over ranks
  SequenceCounts sequences;          // of training, all ranks
  SecondsOfRanks seconds;
  std::uint64_t bytes_sent = 0, bytes_fp32 = 0;  // all ranks, this epoch
  std::optional<std::uint64_t> bytes_between;    // the part of bytes_sent between blocks, if there are blocks
  std::int64_t bad_samples = 0;                  // all ranks, training and evaluation
  bool replicas_equal = true;                    // null in JSON if simulated
  bool simulated = false;                        // collective: simulated
  bool local_steps = false;                      // sync.kind is not every_step
  std::int64_t synchronisations = 0;
  Deviation distance;                // sums of squares over them
  std::uint64_t bytes_average = 0;   // for copies with averaged weights
  std::vector<TensorCoding> coding;  // with metrics.codec_error

  std::int64_t samples() const { return kind == DataKind::images ? train.samples : sequences.sequences; }
  double samples_per_second() const;
  std::string json() const;  // one line, no newline
};

/// "loss 1.2034 top1 56.25% top5 90.10%"; of speech "frame accuracy" in place of top1; of text "loss 4.8212
/// perplexity 124.11".
std::string result_text(DataKind kind, const BatchMetrics& metrics, bool with_top5);

/// "epoch 3/160 | train loss 1.2034 top1 56.25% | val loss ..."
std::string text(const EpochRecord& record, std::int64_t epochs);

/// metrics.jsonl: appended line by line, each flushed to the disk.
class MetricsFile {
 public:
  /// Keeps the lines of epochs 1..finished_epochs of an older file and drops the rest. FileError, also
  /// if a line is no record of an epoch; a last line that a crash cut off is dropped.
  MetricsFile(std::string path, std::int64_t finished_epochs);
  /// FileError, for example when the disk is full.
  void append(const EpochRecord& record);

 private:
  std::string path_;
};

}  // namespace lpsgd
