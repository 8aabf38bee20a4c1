// The coding of an exchange whose messages another program moves, e.g. PyTorch's torch.distributed. The bytes
// and the means are those of Exchange with reduce_broadcast: the same tensors, numbers, owners and dither.
//
// Tensors are exchanged in buckets, which is PyTorch's word for tensors whose messages travel together; a
// codec's buckets are parts of a tensor. For each bucket of a step, in this order: encode(); the caller sends
// outgoing(o) to every other rank o, and receives incoming(r) from every other rank r; reduce(); the caller
// sends mean(rank) to every other rank, and receives mean(o) from every other rank o; decode(). Buckets may
// overlap.
//
// On the CPU a call returns when its work is done. On a CUDA device it queues the work, and the caller queues
// the messages on the stream Options::messages. There a message waits for the encode() or reduce() before it,
// and reduce() and decode() wait for the messages before them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/exchange.h"
#include "core/device.h"
#include "core/tensor_info.h"
#include "quant/codec.h"

namespace lpsgd {

class MessageCoder {
 public:
  struct Options {
    int rank = 0, ranks = 1;
    std::uint32_t seed = 1;
    Device device;         // holds gradients and messages
    StreamView gradients;  // of a CUDA device: the stream that writes and reads the gradients,
    StreamView messages;   // and the one on which messages are moved; two different streams
  };

  /// `tensors` and `codecs` (same length) are equal on all ranks. Offsets of tensors are not used.
  MessageCoder(const std::vector<TensorInfo>& tensors, const std::vector<CodecSpec>& codecs,
               const Options& options);
  ~MessageCoder();
  MessageCoder(const MessageCoder&) = delete;
  MessageCoder& operator=(const MessageCoder&) = delete;

  /// A bucket of one tensor or more, with the places of their gradients, which stay there until the bucket is
  /// dropped. All ranks make the same buckets. Returns its number. Error if the bucket holds no value, or a
  /// tensor that is encoded already in this step.
  std::size_t add_bucket(std::vector<std::size_t> tensors, std::span<float* const> gradients);
  /// From its next encode() on, the gradients of the bucket lie in other places. Not on a CUDA device, where
  /// a new bucket is made.
  void move_bucket(std::size_t bucket, std::span<float* const> gradients);
  /// Frees the messages of a bucket. Its number is not used again. Not within a step.
  void drop_bucket(std::size_t bucket);

  // The messages of a bucket: device memory on a CUDA device. Empty where there is nothing to send.
  std::span<std::byte> outgoing(std::size_t bucket, int owner);
  std::span<std::byte> incoming(std::size_t bucket, int rank);
  std::span<std::byte> mean(std::size_t bucket, int owner);

  /// Opens step `step`, on which the dither depends. Residuals that a NaN or an infinity has reached in the
  /// step before become zero, so that training can go on after a step that the caller skips. For this the
  /// host waits for that step.
  void begin(std::uint32_t step);
  /// encode(), reduce() and decode() throw Error if they are called in another order, or if a tensor is in
  /// two buckets of a step.
  void encode(std::size_t bucket);
  void reduce(std::size_t bucket);
  void decode(std::size_t bucket);
  /// All buckets of the step are decoded. On a device Options::gradients then waits for them.
  void end();

  /// Seconds of encoding and decoding since the last call; on a device those of steps that are done.
  struct Seconds {
    double encode = 0, decode = 0;
  };
  Seconds take_seconds();

  // Between steps: this rank's residuals of a tensor, in the codec's order, of round 1 or 2; empty without
  // error feedback. Values that are not finite are taken as zero.
  std::vector<float> residual(std::size_t tensor, int round) const;
  /// Its number of values.
  std::size_t residual_size(std::size_t tensor, int round) const;
  /// Throws Error if the size is not that of residual().
  void set_residual(std::size_t tensor, int round, std::span<const float> values);

 private:
  class Elsewhere;
  struct Bucket;

  Bucket& at(std::size_t bucket) const;
  void check_gradients(std::span<const std::size_t> tensors, std::span<float* const> gradients) const;
  void use_gradients(const Bucket& bucket);
  void check_rank(int rank) const;
  void reset_non_finite();

  const Options options_;
  const std::unique_ptr<Elsewhere> transport_;
  const std::unique_ptr<ExchangeShared> shared_;
  std::unique_ptr<Coder> coder_;
  std::vector<std::unique_ptr<Bucket>> buckets_;  // by number; nullptr: dropped
  std::vector<int> owners_;                       // all ranks
  std::vector<bool> coded_;                       // the tensors that were encoded in this step
  bool open_ = false;                             // between begin() and end()
};

}  // namespace lpsgd
