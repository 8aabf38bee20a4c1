// A run's report of each epoch: one JSON object, appended to metrics.jsonl and flushed, and a line for the
// terminal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/epoch_sums.h"

namespace lpsgd {

struct EpochRecord {
  std::int64_t epoch = 0, step = 0;  // finished epochs, steps since the start
  double lr = 0;                     // of the last step
  BatchMetrics train, validation;    // sums over ranks
  SecondsOfRanks seconds;
  std::uint64_t bytes_sent = 0, bytes_fp32 = 0;  // all ranks, this epoch
  std::int64_t bad_samples = 0;                  // all ranks, training and evaluation
  bool replicas_equal = true;                    // null in JSON if simulated
  bool simulated = false;                        // collective: simulated
  std::vector<TensorCoding> coding;              // with metrics.codec_error

  double samples_per_second() const;
  std::string json() const;  // one line, no newline
};

/// "epoch 3/160 | train loss 1.2034 top1 56.25% | val loss ..."
std::string text(const EpochRecord& record, std::int64_t epochs);

/// metrics.jsonl: appended line by line, each flushed to the disk.
class MetricsFile {
 public:
  /// Keeps the lines of epochs 1..finished_epochs of an older file and drops the rest. FileError.
  MetricsFile(std::string path, std::int64_t finished_epochs);
  /// FileError, for example when the disk is full.
  void append(const EpochRecord& record);

 private:
  std::string path_;
};

}  // namespace lpsgd
