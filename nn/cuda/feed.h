// How the inputs of a pass get from the host to the device: through page-locked memory. There are two
// buffers, so that the host fills one while the device still reads the other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "nn/cuda/context.h"

namespace lpsgd::cuda {

/// Two page-locked buffers, used in turn.
class Staging {
 public:
  Staging(Device device, std::size_t bytes);
  /// The buffer to fill next. Waits for the last copies from it, so that the host is at most two passes
  /// ahead.
  std::byte* next();
  /// To be called when the copies from that buffer have been queued on `stream`.
  void record_copies(StreamView stream);
  /// The number of that buffer, and the event behind its copies.
  std::size_t index() const { return index_; }
  const Event& copied() const { return buffers_[index_].copied; }
  std::size_t bytes() const { return buffers_[0].memory.size(); }

 private:
  struct HostBuffer {
    PinnedBuffer<std::byte> memory;
    Event copied;
  };
  std::array<HostBuffer, 2> buffers_;
  std::size_t index_ = 0;
};

/// Uploads the inputs, which are float32 on the host and have the network's type on the device. They are
/// copied to the device on a stream of their own, while it still computes the previous pass. A copy within
/// the device remains for the compute stream.
class InputFeed {
 public:
  explicit InputFeed(Context& context);
  void upload(void* to, DataType type, std::span<const float> from);

 private:
  /// Receives the content of one host buffer.
  struct Received {
    void* memory = nullptr;
    Event consumed;
  };
  Context& context_;
  Stream transfer_;
  std::optional<Staging> staging_;
  std::array<Received, 2> received_;
};

/// The input of a network whose samples arrive as bytes.
std::unique_ptr<PixelInput> make_pixel_input(InputFeed& feed, const PixelDesc& desc);

/// Uploads step, labels and lengths: PassState and two arrays, in one copy.
class PassFeed {
 public:
  /// Sets the context's pointers to its memory.
  PassFeed(Context& context, std::int64_t batch, std::int64_t frames, std::int64_t classes);
  /// Error if a label is not a class.
  void upload(const Pass& pass, std::span<const std::int32_t> labels);

 private:
  Context& context_;
  std::int64_t batch_, frames_, classes_;
  std::size_t lengths_at_, labels_at_, bytes_;
  std::byte* device_;
  Staging staging_;
};

}  // namespace lpsgd::cuda
