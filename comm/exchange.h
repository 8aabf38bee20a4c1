// The exchange: a compressed all-reduce of one step's gradients, running on a communication thread of its own
// while backward goes on (EDBT 2018, section 3: reduce and broadcast with quantization on both ways).
//
// Per tensor: slice r's bytes go to its owner (round 1); the owner decodes all contributions in rank order,
// takes the mean, encodes it with a second residual (round 2) and sends it to all; every rank, the owner too,
// decodes the same bytes into its gradient, so replicas stay identical bit for bit. Large tensors go through
// in chunks, small ones are packed; neither changes a bit of the result.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/transport.h"
#include "core/config.h"
#include "core/device.h"
#include "core/tensor_info.h"
#include "quant/codec.h"

namespace lpsgd {

class CodingDevice;
class Trace;

enum class Collective : std::uint8_t { reduce_broadcast, allreduce, simulated };

struct ExchangeOptions {
  Collective collective = Collective::reduce_broadcast;
  std::uint32_t seed = 1;
  bool overlap = true;                 // false: everything starts in finish()
  std::int64_t chunk_bytes = 1 << 20;  // float32 bytes of a tensor per chunk and owner, rounded to buckets
  std::int64_t pack_bytes = 1 << 18;   // small tensors are packed until they hold this many float32 bytes
  int units_in_flight = 4;             // chunks whose encode, transfer and decode overlap
  bool measure_error = false;          // for take_errors()
  Trace* trace = nullptr;              // where spans go, if anywhere; outlives the exchange

  Device device;       // where the gradients lie and are coded
  StreamView compute;  // of a CUDA device: the stream that writes and reads the gradients
  /// Whether the transport is handed device memory; unset: where it says that it takes it. Otherwise messages
  /// are staged through page-locked memory.
  std::optional<bool> device_pointers;
  CodingDevice* coding_device = nullptr;  // in place of `device` (tests); outlives the exchange
};

/// Sums of squares over the steps and values of one tensor on this rank, round 1: what was coded is gradient
/// + residual, `error` is that less what it decodes to.
struct CodingError {
  double gradient = 0, error = 0;
  double residual = 0;  // after the step; the error itself with error feedback, else 0

  void add(const CodingError& more) {
    gradient += more.gradient;
    error += more.error;
    residual += more.residual;
  }
};

/// Seconds of the communication thread, or of the device's work, and bytes, summed since the last
/// take_stats().
struct ExchangeStats {
  double encode = 0, decode = 0, transfer = 0;  // owner's step: its decoding and adding count as decode
                                                // (measured or apportioned), its encoding as encode
  double exposed = 0;                           // finish() waited this long; on a device the compute stream
  double exposed_codec = 0;      // the part of it while the communication thread encoded or decoded
  std::uint64_t bytes_sent = 0;  // by this rank: both rounds, all tensors, as put on the wire
};

/// Residuals of one rank, for checkpoints. Tensors without error feedback have empty entries.
struct ExchangeState {
  std::vector<std::vector<float>> round1;  // per tensor: `elements` values, in the codec's order
  std::vector<std::vector<float>> round2;  // per tensor: the values of the stripe this rank owns
};

/// The lowest tensor (and its lowest rank) whose own gradient held a NaN or an infinity.
struct NonFinite {
  std::int64_t tensor = -1;  // -1: none
  int rank = -1;             // -1: no one's did; only the sum or what the codec can hold overflowed
  std::uint32_t step = 0;    // the step that was looked at
};

class Exchange {
 public:
  /// `tensors` and `codecs` (same length) are equal on all ranks; `gradients` is the arena they point into
  /// and outlives the exchange. `order` is the order in which backward announces tensors; every tensor once.
  Exchange(Transport& transport, std::vector<TensorInfo> tensors, const std::vector<CodecSpec>& codecs,
           std::span<float> gradients, std::vector<std::size_t> order, const ExchangeOptions& options);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// Opens step `step` (counted from 0; the dither depends on it). This, check_finite() and take_stats()
  /// throw CommError where work of the transport that was queued before has failed.
  void begin(std::uint32_t step);
  /// The gradient of `tensor` is final, on a device once what the compute stream holds now is done; returns
  /// at once. Tensors come in `order`.
  void submit(std::size_t tensor);
  /// The tensors whose submission lets a part of the exchange begin, in order: those between them may as well
  /// be submitted together with the next of these.
  std::vector<std::size_t> milestones() const;
  /// Whether what a step queues from its first submit() to finish() may be captured (core/capture.h), with
  /// what computes the gradients: over an ordered transport, without a trace. Such a graph serves every
  /// second step, so there are two of them.
  bool can_capture() const;
  /// Behind the launch of a graph, on the compute stream: of this step's, which has just been made, or in
  /// place of submit() and finish() of that of the step before the last. Either all ranks launch graphs
  /// in a step, or none.
  void launched();
  /// Waits until every gradient holds the mean over ranks. On a device it returns when all of the step's work
  /// is queued, and the compute stream waits for it. Rethrows what failed on the communication thread.
  void finish();
  /// After finish(): whether this step's mean held a value that is not finite, and whose gradient it was. A
  /// collective call (cheap: nothing is exchanged unless a mean is not finite, which all ranks see alike). On
  /// a device it waits for the step's work; with `before` it looks at the step before instead, so that a
  /// caller who looks every step waits while the device has the newest to do.
  NonFinite check_finite(bool before = false);

  ExchangeStats take_stats();
  /// With ExchangeOptions::measure_error: adds the sums since the last call to `sums`, one entry a tensor.
  void take_errors(std::span<CodingError> sums);
  ExchangeState state() const;
  void set_state(const ExchangeState& state);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Bytes of one encoded copy of a tensor; K ranks together send 2(K-1) of them a step. K matters only
/// to codecs with a table, which precedes every stripe.
std::uint64_t wire_bytes(const TensorInfo& tensor, const CodecSpec& codec, int ranks);

/// The residuals of a run with other ranks: round-1 residuals become the mean of the old ones (so that their
/// mean is kept), round-2 residuals are cut anew along the stripes of `ranks`. `old` holds one entry per old
/// rank.
std::vector<ExchangeState> redistribute(const std::vector<ExchangeState>& old,
                                        const std::vector<TensorInfo>& tensors,
                                        const std::vector<CodecSpec>& codecs, int ranks);

}  // namespace lpsgd
