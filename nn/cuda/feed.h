// How the inputs of a pass get from the host to the device. What is large is copied from where the caller has
// it, which should be page-locked memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "nn/cuda/context.h"

namespace lpsgd::cuda {

/// Two page-locked buffers, used in turn: the host fills one while the device still reads the other.
class Staging {
 public:
  Staging(Device device, std::size_t bytes);
  /// The buffer to fill next. Waits for the last copies from it, so that the host is at most two passes
  /// ahead.
  std::byte* next();
  /// To be called when the copies from that buffer have been queued on `stream`.
  void record_copies(StreamView stream);

 private:
  struct HostBuffer {
    PinnedBuffer<std::byte> memory;
    Event copied;
  };
  std::array<HostBuffer, 2> buffers_;
  std::size_t index_ = 0;
};

/// Copies inputs to the device straight from the caller's memory, on a stream of its own, while the device
/// still computes the previous pass. There are two buffers on the device, used in turn.
class InputFeed {
 public:
  explicit InputFeed(Context& context);
  /// Queues a copy of `from`, and records `read` behind it unless it is null. Returns where work queued on
  /// the compute stream finds the bytes. release() is to be called behind that work.
  const void* receive(std::span<const std::byte> from, Event* read);
  void release();
  /// Copies float32 values, which become `type` on the device.
  void upload(void* to, DataType type, std::span<const float> from, Event* read);

 private:
  struct Received {
    void* memory = nullptr;
    Event arrived, released;
  };
  Context& context_;
  Stream transfer_;
  std::array<Received, 2> received_;
  std::size_t bytes_ = 0;  // of each
  std::size_t index_ = 0;
};

/// The input of a network whose samples arrive as bytes.
std::unique_ptr<PixelInput> make_pixel_input(Context& context, InputFeed& feed, const PixelDesc& desc);

/// Uploads step, labels, lengths, crops and what continues: PassState and four arrays, in one copy.
class PassFeed {
 public:
  /// Sets the context's pointers to its memory.
  PassFeed(Context& context, std::int64_t batch, std::int64_t frames, std::int64_t classes);
  /// Error if a label is not a class.
  void upload(const Pass& pass, std::span<const std::int32_t> labels);
  std::int64_t batch() const { return batch_; }

 private:
  Context& context_;
  std::int64_t batch_, frames_, classes_;
  std::size_t lengths_at_, crops_at_, continues_at_, labels_at_, bytes_;
  std::byte* device_;
  Staging staging_;
};

}  // namespace lpsgd::cuda
