// What a run tells about itself: one JSON object an epoch, appended to metrics.jsonl and flushed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/exchange.h"
#include "comm/transport.h"
#include "nn/network.h"

namespace lpsgd {

/// One rank's seconds in one epoch. encode, transfer and decode are the communication thread's, beside the
/// others.
struct Seconds {
  double total = 0, data = 0, forward = 0, backward = 0, encode = 0, transfer = 0, decode = 0;
  double exposed_comm = 0;   // the step waited for the exchange after backward ended
  double exposed_codec = 0;  // of that, while the exchange encoded or decoded
  double update = 0, eval = 0;

  void add(const Seconds& more);
  double other() const { return total - data - forward - backward - exposed_comm - update - eval; }
  double communication() const { return exposed_comm - exposed_codec; }
  /// The paper's split (EDBT 2018, section 4): computation includes encoding and decoding.
  double computation() const { return total - eval - other() - communication(); }
};

/// One epoch's seconds over ranks. After a resume within the epoch, least and most are sums of the parts'.
struct SecondsOfRanks {
  Seconds mean, min, max;

  void add(const SecondsOfRanks& more);
};

/// Collective.
SecondsOfRanks over_ranks(Transport& transport, const Seconds& mine);
/// Every rank's. Collective.
std::vector<BatchMetrics> of_all_ranks(Transport& transport, const BatchMetrics& mine);
/// Sums in rank order.
BatchMetrics sum(const std::vector<BatchMetrics>& parts);
/// The sum over ranks. Collective.
std::uint64_t sum_over_ranks(Transport& transport, std::uint64_t mine);
std::vector<CodingError> sum_over_ranks(Transport& transport, const std::vector<CodingError>& mine);

/// A tensor's codec in one epoch (docs/exchange.md).
struct TensorCoding {
  std::string name;
  double error = 0;         // norm of what coding lost over the norm of the gradients
  double residual = 0;      // norm of the residual, root of the mean square over steps and ranks
  std::uint64_t bytes = 0;  // on the wire, all ranks
};

struct EpochRecord {
  std::int64_t epoch = 0, step = 0;  // finished epochs, steps since the start
  double lr = 0;                     // of the last step
  BatchMetrics train, validation;    // sums over ranks
  SecondsOfRanks seconds;
  std::uint64_t bytes_sent = 0, bytes_fp32 = 0;  // all ranks, this epoch
  bool replicas_equal = true, replicas_compared = true;
  bool simulated = false;
  std::vector<TensorCoding> coding;  // with metrics.codec_error

  double samples_per_second() const;
  std::string json() const;  // one line, no newline
};

/// metrics.jsonl: appended line by line, each flushed to the disk.
class MetricsFile {
 public:
  /// Keeps the lines of epochs 1..finished_epochs of an older file and drops the rest. FileError.
  MetricsFile(std::string path, std::int64_t finished_epochs);
  void append(const EpochRecord& record);

 private:
  std::string path_;
};

}  // namespace lpsgd
