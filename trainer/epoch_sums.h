// Sums over the steps of an epoch: losses, seconds, bytes and coding errors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/exchange.h"
#include "comm/transport.h"
#include "nn/network.h"
#include "trainer/averaged_weights.h"
#include "trainer/bad_samples.h"
#include "trainer/batch_inputs.h"
#include "trainer/seconds.h"
#include "trainer/sequence_counts.h"

namespace lpsgd {

BatchMetrics& operator+=(BatchMetrics& sum, const BatchMetrics& more);
/// Sums in rank order.
BatchMetrics sum(const std::vector<BatchMetrics>& parts);
/// Every rank's. Collective.
std::vector<BatchMetrics> of_all_ranks(Transport& transport, const BatchMetrics& mine);

/// What some steps measured on one rank.
struct StepMetrics {
  BatchMetrics batches;
  SequenceCounts sequences;
  Seconds seconds;                               // total and eval stay 0: they are an epoch's
  std::uint64_t bytes_sent = 0, bytes_fp32 = 0;  // by this rank; what all ranks would send as float32
  std::uint64_t bytes_between = 0;               // by this rank, between the exchange's blocks
  std::int64_t steps = 0;
  std::int64_t exchanges = 0;        // of gradients, or of what local steps changed
  std::int64_t block_exchanges = 0;  // those of them that were within blocks of ranks
  Deviation distance = {};           // of the replicas, if it was measured
  std::uint64_t bytes_average = 0;   // by this rank, for that
  BadSamples bad_samples;
};

/// The sums of an unfinished epoch over all ranks. Checkpoints store them, so that the epoch's record is
/// complete after a resume.
struct EpochSoFar {
  std::vector<BatchMetrics> train;  // of each rank
  SecondsOfRanks seconds;
  std::uint64_t bytes_sent = 0, bytes_fp32 = 0;  // all ranks
  std::uint64_t bytes_between = 0;               // all ranks
  std::int64_t bad_samples = 0;                  // all ranks
  SequenceCounts sequences = {};                 // all ranks
  std::int64_t exchanges = 0;                    // each rank's
  Deviation distance = {};                       // mean over ranks
  std::uint64_t bytes_average = 0;               // all ranks, for copies with averaged weights
};

/// A tensor's codec in one epoch (docs/exchange.md).
struct TensorCoding {
  std::string name;
  double error = 0;         // norm of the coding error over the norm of the gradients
  double residual = 0;      // norm of the residual, root of the mean square over steps and ranks
  std::uint64_t bytes = 0;  // on the wire, all ranks
};

/// One rank's sums over the current epoch.
class EpochSums {
 public:
  /// `measured_tensors`: of how many tensors the coding error is measured; 0: none.
  explicit EpochSums(std::size_t measured_tensors) : errors_(measured_tensors) {}

  /// Starts the epoch's clock at `now`, in seconds of now_seconds().
  void start_clock(double now) { started_ = now; }
  /// The epoch's time does not contain these seconds.
  void skip(double seconds) { started_ += seconds; }
  /// Continues from a checkpoint within the epoch. Each rank continues its own sum, so that losses are added
  /// in the same order as without a stop. If the number of ranks has changed, rank 0 continues the sums of
  /// all.
  void resume(EpochSoFar so_far, int rank, bool other_ranks);

  void add(const StepMetrics& metrics);
  /// Whether the epoch has a distance between replicas.
  bool has_distance() const { return distance_.change > 0 || carried_.distance.change > 0; }
  /// What this rank sent for a copy with averaged weights.
  void add_average(std::uint64_t bytes) { bytes_average_ += bytes; }
  void add_evaluation(double seconds, const BadSamples& bad) {
    seconds_.eval += seconds;
    bad_ += bad;
  }
  /// This rank's since the epoch's start or the last resume.
  const BadSamples& bad_samples() const { return bad_; }
  /// One entry per measured tensor, for Exchange::take_errors() to add to.
  std::span<CodingError> coding_errors() { return errors_; }

  /// The epoch over all ranks up to `now`, including the part before a resume. Collective.
  EpochSoFar so_far(Transport& transport, double now) const;
  /// Coding errors since the epoch's start or the last resume, one entry per measured tensor. Collective.
  std::vector<TensorCoding> coding(Transport& transport, const std::vector<TensorInfo>& tensors) const;
  /// Begins the next epoch's sums.
  void clear();

 private:
  EpochSoFar carried_;  // from before a resume, less this rank's losses
  BatchMetrics train_;
  SequenceCounts sequences_;
  Seconds seconds_;
  std::uint64_t bytes_sent_ = 0, bytes_fp32_ = 0;  // by this rank; by all
  std::uint64_t bytes_between_ = 0;                // by this rank
  std::uint64_t bytes_average_ = 0;                // by this rank
  std::int64_t exchanges_ = 0;
  Deviation distance_;
  BadSamples bad_;
  std::vector<CodingError> errors_;
  double started_ = 0;
};

}  // namespace lpsgd
