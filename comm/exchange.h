// The exchange: a compressed all-reduce of one step's gradients that overlaps with backward (EDBT 2018,
// section 3: reduce and broadcast with quantization in both directions).
//
// Per tensor: every rank encodes each stripe and sends it to its owner (round 1). The owner decodes all
// contributions in rank order, takes the mean, encodes it with a second residual (round 2) and sends it to
// all. Every rank, the owner too, decodes the same bytes into its gradient, so replicas stay identical bit
// for bit. Large tensors are cut into chunks, small ones are packed; neither changes a bit of the result.
//
// With Collective::hierarchical ranks are in blocks, as those of a machine. In each block the rank at an
// owner's place stands for the block: it adds the gradients of the block's ranks as float32, encodes their
// mean in round 1, and hands the owner's mean of round 2 on to the block. So between blocks one encoded copy
// of a block travels each way instead of one of each rank.
//
// Over a transport that queues messages on a stream (Transport::ordered, NCCL), submit() queues coding and
// messages on the caller's thread. Over the others, where the host moves the messages, a communication thread
// does both.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/exchange_plan.h"
#include "comm/rank_blocks.h"
#include "comm/transport.h"
#include "core/device.h"
#include "core/tensor_info.h"
#include "quant/codec.h"

namespace lpsgd {

class Coder;
struct ExchangeShared;
class Trace;
class UnitInFlight;

enum class Collective : std::uint8_t { reduce_broadcast, hierarchical, allreduce, simulated };
/// Whether each rank owns stripes, whose means it encodes, so that all ranks decode the same bytes.
constexpr bool has_owners(Collective c) {
  return c == Collective::reduce_broadcast || c == Collective::hierarchical;
}

struct ExchangeOptions {
  Collective collective = Collective::reduce_broadcast;
  int ranks_per_block = 1;  // of hierarchical
  std::uint32_t seed = 1;
  bool overlap = true;                 // false: everything starts in finish()
  std::int64_t chunk_bytes = 1 << 20;  // float32 bytes of a tensor per chunk and owner, rounded to buckets
  /// Small tensors are packed until they hold this many float32 bytes. Unset: 256 KiB, and 2 MiB where all
  /// ranks stage their messages through page-locked memory, because each unit then costs waits for copies.
  std::optional<std::int64_t> pack_bytes;
  int units_in_flight = 4;     // chunks whose encode, transfer and decode overlap
  bool measure_error = false;  // for take_errors()
  int first_rank = 0;          // this transport's rank 0 among all, for the dither
  /// Cuts the tensors into parts, of which a step exchanges one: the number after each part's last tensor.
  /// Empty: one part. No byte of a tensor depends on it.
  std::vector<std::size_t> parts = {};
  Trace* trace = nullptr;  // receives spans unless nullptr; outlives the exchange

  Device device;       // holds the gradients and codes them
  StreamView compute;  // of a CUDA device: the stream that writes and reads the gradients
  /// Whether the transport is given device memory; unset: if it takes it. Otherwise messages are staged
  /// through page-locked memory.
  std::optional<bool> device_pointers;
};

/// Sums of squares over the steps and values of one tensor on this rank, round 1: `error` is gradient +
/// residual, which was coded, less its decoding.
struct CodingError {
  double gradient = 0, error = 0;
  double residual = 0;         // after the step; the error itself with error feedback, else 0
  std::int64_t exchanges = 0;  // the steps
  std::int64_t float32 = 0;    // those of them with codec none
  std::uint64_t bytes = 0;     // on the wire, of all ranks that exchange; those after rank 0 have 0

  void add(const CodingError& more) {
    gradient += more.gradient;
    error += more.error;
    residual += more.residual;
    exchanges += more.exchanges;
    float32 += more.float32;
    bytes += more.bytes;
  }
};

/// Seconds of the communication thread's work, or on a device of its streams', and bytes. Sums since the last
/// take_stats().
struct ExchangeStats {
  double encode = 0, decode = 0, transfer = 0;  // owner's step: its decoding and adding count as decode
                                                // (measured or apportioned), its encoding as encode
  double exposed = 0;                           // finish() waited this long; on a device the compute stream
  double exposed_codec = 0;                     // the part of it in which something was encoded or decoded
  std::uint64_t bytes_sent = 0;                 // by this rank: both rounds, all tensors, as put on the wire
  std::uint64_t bytes_between = 0;              // those of them to other blocks; without blocks all
};

/// Residuals of one rank, for checkpoints. Tensors without error feedback have empty entries.
struct ExchangeState {
  std::vector<std::vector<float>> round1;  // per tensor: of the stripes it encodes, in the codec's order
  std::vector<std::vector<float>> round2;  // per tensor: the values of the stripe this rank owns
};

/// Which residuals the ranks keep.
struct ResidualLayout {
  RankBlocks ranks;
  bool has_round2 = true;  // owners encode means
};

/// Values in a tensor's entries of ExchangeState; 0: none are kept.
struct ResidualSizes {
  std::size_t round1 = 0, round2 = 0;
};
/// Those of the tensor with this number on a rank.
ResidualSizes residual_sizes(const TensorInfo& tensor, const CodecSpec& codec, std::size_t number,
                             const ResidualLayout& layout, int rank);

/// As ExchangeState, in memory of the caller's.
struct ResidualViews {
  std::vector<std::span<float>> round1, round2;
};

/// The lowest tensor (and its lowest rank) whose own gradient held a NaN or an infinity.
struct NonFinite {
  std::int64_t tensor = -1;  // -1: none
  int rank = -1;             // -1: none; only the sum or the codec's range overflowed
  std::uint32_t step = 0;    // the step that was checked
};

class Exchange {
 public:
  /// `tensors` and `codecs` (same length) are equal on all ranks; `gradients` is the arena that holds their
  /// gradients and outlives the exchange. `order` is the order in which backward announces tensors; every
  /// tensor once.
  Exchange(Transport& transport, const std::vector<TensorInfo>& tensors, const std::vector<CodecSpec>& codecs,
           std::span<float> gradients, std::vector<std::size_t> order, const ExchangeOptions& options);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// Opens step `step` (counted from 0; the dither depends on it), of the tensors of one part. begin(),
  /// check_finite() and take_stats() throw CommError if messages that were queued earlier have failed.
  void begin(std::uint32_t step, std::size_t part = 0);
  /// The gradient of `tensor` is final; on a device, once the work queued so far on `behind` is done, by
  /// default on the compute stream. Does not wait for the exchange. The part's tensors are submitted in
  /// `order`.
  void submit(std::size_t tensor, StreamView behind = {});
  /// The tensors whose submission lets a unit of the exchange begin, in order. A caller may hold back the
  /// tensors between two of them and submit them with the second.
  std::vector<std::size_t> milestones() const;
  /// Every tensor has been submitted: the exchange goes on while the caller does something else, until
  /// finish(). In between no other call of this object is allowed, nor one of the transport unless it is
  /// ordered.
  void release();
  /// Waits until every gradient holds the mean over ranks. On a device it returns when all of the step's work
  /// is queued, and the compute stream waits for it. Rethrows an error of the communication thread. Calls
  /// release() if the caller has not.
  void finish();
  /// Between begin() and finish().
  bool is_open() const { return open_; }

  /// Whether the calls from a step's first submit() to finish() may be captured (CapturedGraph::capture on
  /// the compute stream), with what computes the gradients. This requires an ordered transport and no trace.
  /// A graph may be launched in the step in which it was captured and in every second step after it, so two
  /// graphs alternate.
  bool can_capture() const;
  /// Call it after each launch of such a graph: in the step in which it was captured, and in later steps
  /// between begin() and the next begin(), where no other call is needed. It counts the bytes sent, and lets
  /// the host read this step's flags and times. In one step either all ranks launch a graph or none does.
  void launched();

  /// After finish(): whether this step's mean held a non-finite value, and whose gradient it came from. A
  /// collective call (cheap: ranks communicate only if a mean is non-finite or means may differ). On a device
  /// it waits for the step's work. With `before` it checks the step before instead: a caller that checks
  /// every step then waits while the device is busy with the newest one.
  NonFinite check_finite(bool before = false);

  ExchangeStats take_stats();
  /// With ExchangeOptions::measure_error: adds the sums since the last call to `sums`, one entry a tensor.
  void take_errors(std::span<CodingError> sums);
  ExchangeState state() const;
  const RankBlocks& blocks() const;
  ResidualLayout residual_layout() const;
  /// One entry per tensor.
  std::vector<ResidualSizes> residual_sizes() const;
  /// Copies what state() returns to host memory of these sizes, without waiting for a device: the copies are
  /// queued on the compute stream.
  void copy_state(const ResidualViews& to) const;
  /// Throws Error if the sizes of `state` are not those that state() returns.
  void set_state(const ExchangeState& state);

 private:
  void make_tensors(const std::vector<TensorInfo>& infos, const std::vector<CodecSpec>& codecs,
                    std::span<float> gradients);
  /// A part of the tensors: positions in order_, and units of the plan.
  struct Part {
    std::size_t begin = 0, end = 0;
    std::size_t first_unit = 0, last_unit = 0;
    std::int64_t exchanges = 0;  // since the last take_errors()
  };
  void make_parts();
  void make_units();
  UnitInFlight& slot(std::size_t unit) const { return *in_flight_[unit % in_flight_.size()]; }
  void count_step();
  void collect();  // the coder's times
  void rethrow_failure();

  // Over an ordered transport: on the caller's thread.
  void queue_units(std::size_t end);  // those before `end` that have not been queued
  void queue_unit(std::size_t unit);
  int queued_at_once() const;  // units that queue_unit() works on
  void watch();                // on the exchange's thread: of a device that makes no progress

  // Over the others: on the exchange's thread, the communication thread.
  void serve();
  double poll_units();

  std::string waiting_text(UnitOfStep at, double seconds, const std::string& ranks) const;

  const ExchangeOptions options_;
  const std::vector<std::size_t> order_;  // the parts one after another
  const std::unique_ptr<ExchangeShared> shared_;
  std::vector<Unit> plan_;
  std::vector<Part> parts_;
  std::unique_ptr<Coder> coder_;
  std::vector<std::unique_ptr<UnitInFlight>> in_flight_;  // unit u is in slot u mod their number

  bool open_ = false;                                 // between begin() and finish()
  bool released_ = false;                             // release() was called in this step
  std::size_t turn_ = 0;                              // the part of this step
  Part part_;                                         // the same
  std::size_t submitted_ = 0;                         // tensors, as a position in order_
  std::size_t next_ = 0;                              // the unit to queue next
  ExchangeStats stats_;                               // of the steps that have been collected
  std::vector<std::int64_t> lowest_of_ranks_;         // check_finite()'s
  std::uint64_t step_bytes_ = 0, step_messages_ = 0;  // of the last step queued, as the transport counts

  std::mutex mutex_;  // guards what follows, except the atomics
  std::condition_variable wake_, finished_;
  bool working_ = false;  // on a step, on the communication thread
  std::exception_ptr failure_;
  std::optional<UnitOfStep> queueing_;     // the unit that the caller's thread queues
  std::atomic<std::size_t> available_{0};  // submitted tensors that may be exchanged now
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

/// Bytes of one encoded copy of a tensor; K ranks together send 2(K-1) of them a step. K matters only
/// to codecs with a table, which precedes every stripe.
std::uint64_t wire_bytes(const TensorInfo& tensor, const CodecSpec& codec, int ranks);

/// One rank's residuals in a run with another number of ranks, or with other blocks of them: round-1
/// residuals become the mean of the old ones (so that their mean is kept), round-2 residuals are cut along
/// the new stripes. The old ranks' residuals come one after the other, so that few of them need be in memory.
class Redistribution {
 public:
  /// For `rank` of `ranks`. The tensors and codecs must outlive it.
  Redistribution(const std::vector<TensorInfo>& tensors, const std::vector<CodecSpec>& codecs,
                 const RankBlocks& old_ranks, const ResidualLayout& now, int rank);
  /// The residuals of old rank 0, then 1, ... Error if they have other sizes than they had in that run; those
  /// of round 2 may be empty, and are then zeros.
  void add(const ExchangeState& old);
  /// After all have been added.
  ExchangeState take();

 private:
  void add(std::size_t tensor, std::span<const float> round1, std::span<const float> round2);

  const std::vector<TensorInfo>& tensors_;
  const std::vector<CodecSpec>& codecs_;
  const RankBlocks old_ranks_;
  const ResidualLayout now_;
  const int rank_;
  int added_ = 0;                           // ranks
  std::vector<std::vector<double>> sums_;   // of round 1
  std::vector<std::vector<float>> round2_;  // this rank's stripes
};

/// One rank's residuals, as it keeps them if owners encode means or not: those of round 2 are made of zeros
/// or dropped. Returns whether any were.
bool fit_round2(ExchangeState& residuals, const std::vector<TensorInfo>& tensors,
                const std::vector<CodecSpec>& codecs, const ResidualLayout& layout, int rank);

}  // namespace lpsgd
