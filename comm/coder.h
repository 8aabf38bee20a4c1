// Coders encode and decode for the exchange. The state machine (comm/exchange_unit.cc) calls them. A coder
// owns the residuals and the memory of messages. On the CPU (comm/cpu_coder.cc) a call returns when its work
// is done; on a CUDA device (comm/cuda/device_coder.cc) it queues the work on streams.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/exchange.h"
#include "comm/exchange_plan.h"
#include "comm/exchange_tensor.h"
#include "comm/exchange_trace.h"
#include "comm/transport.h"

namespace lpsgd {

/// Time spent in codecs, in seconds of one clock.
class CodecClock {
 public:
  using Work = ExchangeTrace::Work;

  /// Coding of `values` values from `start` to `end`. A reduce counts as `ranks` decodings and one encoding,
  /// divided by their measured costs.
  void add(Work work, double values, int ranks, double start, double end);

  std::atomic<double> exposed_from = std::numeric_limits<double>::infinity();  // when waiting began
  double encode = 0, decode = 0, exposed = 0;  // seconds since they were last reset

 private:
  double encoded_ = 0, encoding_ = 0, decoded_ = 0, decoding_ = 0;  // values and seconds, since the start
};

/// What the exchange and its coder share.
struct ExchangeShared {
  Transport& transport;
  RankBlocks blocks = {};
  std::vector<ExchangeTensor> tensors = {};
  std::uint32_t seed = 1;
  std::uint32_t step = 0;
  int first_rank = 0;  // see ExchangeOptions
  bool measure_error = false;
  CodecClock clock = {};
  std::uint64_t bytes_sent = 0, bytes_between = 0;  // of this step; those to other blocks
  std::size_t next_sum = 0;  // the unit whose all-reduce is next: all ranks call them in one order
  std::unique_ptr<ExchangeTrace> trace = {};  // nullptr without ExchangeOptions::trace

  RankPlace self() const { return {blocks, transport.rank()}; }
  CodingContext context(int round) const {
    return {seed, step, static_cast<std::uint32_t>(first_rank + transport.rank()),
            static_cast<std::uint32_t>(round)};
  }
};

/// Values of the segments.
std::int64_t count_values(std::span<const Segment> segments);

/// A unit of the plan and its number there.
struct NumberedUnit {
  const Unit* unit = nullptr;
  std::size_t number = 0;
};

/// Codes one unit at a time, with buffers that are kept from step to step.
class UnitCoder {
 public:
  virtual ~UnitCoder() = default;

  /// Whether the last unit no longer uses the messages' memory, so that the next may start.
  virtual bool free() const = 0;
  virtual void start(NumberedUnit unit) = 0;

  // The unit's messages, in memory that the transport reads and writes. Owners have the numbers of
  // RankBlocks; without blocks each rank is a block.
  virtual std::span<std::byte> outgoing(int owner) = 0;  // round 1, of owners at the own place
  virtual std::span<std::byte> incoming(int block) = 0;  // round 1, of another block
  virtual std::span<std::byte> mean(int owner) = 0;      // round 2
  // Only with blocks.
  virtual std::span<std::byte> share(int place) = 0;           // float32, of all owners at a place
  virtual std::span<std::byte> incoming_share(int place) = 0;  // the same, of another rank of the block
  virtual std::span<std::byte> means(int place) = 0;           // round 2, of all owners at a place

  /// How many owners one encode() or decode() should cover, or places one divide(): 1, or all that remain.
  virtual int owners_at_once() const = 0;
  /// Only with blocks: this rank's gradient of the owners at these places, into share().
  virtual void divide(std::span<const int> places) = 0;
  /// Only with blocks: the mean of the block's gradients of owners at the own place, which encode() then
  /// encodes.
  virtual void sum() = 0;
  /// This rank's gradient (or the block's mean) of these owners' segments, into outgoing().
  virtual void encode(std::span<const int> owners) = 0;
  /// The contributions to the own segments, in incoming() and the own outgoing(), into the own mean().
  virtual void reduce() = 0;
  /// mean() of these owners into the gradient.
  virtual void decode(std::span<const int> owners) = 0;
  /// Over an ordered transport: the messages that the next call decodes have been queued.
  virtual void queued() {}
  /// Whether the result of the last divide(), encode(), reduce() or pack() may be sent.
  virtual bool ready() const = 0;

  // Without owners, for all-reduces.
  /// The unit's gradient as float32 in one piece; unpack() takes it from there, times 1/K.
  virtual std::span<float> pack() = 0;
  virtual void unpack() = 0;
  /// Decodes this rank's own outgoing(0).
  virtual void decode_own() = 0;
  /// Zeros for the transport to sum: as many as fill the unit's bytes.
  virtual std::span<float> zeros() = 0;
};

class Coder {
 public:
  virtual ~Coder() = default;

  /// A coder for these units, which it codes one at a time.
  virtual std::unique_ptr<UnitCoder> make_unit_coder(std::span<const NumberedUnit> units) = 0;

  // Calls of a step, in order. The caller's thread makes all calls but end_step(), which the communication
  // thread makes if there is one.
  virtual void begin_step() = 0;
  /// The gradients of the first `tensors` tensors in announce order are final; on a device, once the work
  /// queued so far on `behind` is done. The CPU's stands for the compute stream.
  virtual void submitted(std::size_t tensors, StreamView behind) = 0;
  /// finish() has been called.
  virtual void waiting() = 0;
  /// All units are done, or queued. `busy`: seconds of the host's clock in which units were in flight.
  virtual void end_step(double busy) = 0;
  /// finish() is about to return.
  virtual void joined() = 0;
  /// A graph with the calls from submitted() to joined() has been launched in this step.
  virtual void launched() {}
  /// Waits for all queued work, before units and coder are destroyed.
  virtual void drain() noexcept {}

  /// Seconds of the steps finished since the last call. Coding times are added to the clock.
  struct Times {
    double exposed = 0, busy = 0;  // finish() waited; units were in flight
  };
  virtual Times collect() = 0;
  /// The oldest unit whose queued work is not done, if any. Any thread may call it; it does not wait.
  virtual std::optional<UnitOfStep> unfinished() { return {}; }
  /// Fills the tensors' own_finite and mean_finite for the last step, or with `before` for the step before
  /// it. Returns the step's number, -1 if there was none.
  virtual std::int64_t read_finite_flags(bool before) = 0;

  /// Copies the residual of round 1 or 2, values in the codec's order, to host memory. On a device the copy
  /// is queued on the compute stream.
  virtual void copy_residual(std::size_t tensor, int round, std::span<float> to) const = 0;
  virtual void set_residual(std::size_t tensor, int round, std::span<const float> values) = 0;
  /// With ExchangeShared::measure_error: adds the sums since the last call, one entry a tensor.
  virtual void take_errors(std::span<CodingError> sums) = 0;
};

std::unique_ptr<Coder> make_cpu_coder(ExchangeShared& shared);
/// The coder for the device in `options`. ConfigError if the transport does not support the options,
/// DeviceError for a CUDA device in a build without the CUDA backend.
std::unique_ptr<Coder> make_coder(ExchangeShared& shared, const ExchangeOptions& options);

}  // namespace lpsgd
