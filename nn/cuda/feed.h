// How a pass gets what the host has: through page-locked memory, two halves in turn, so that the host fills
// one while the device still reads the other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "nn/cuda/context.h"

namespace lpsgd::cuda {

/// Two page-locked arrays in turn.
class Staging {
 public:
  Staging(Device device, std::size_t bytes);
  /// The half whose last copy is the older one. Waits for that copy: the host is at most two passes ahead.
  std::byte* next();
  /// The copies from the half that next() gave have been queued.
  void sent(StreamView stream);
  /// Which half next() gave, and the event behind its copies.
  std::size_t turn() const { return turn_; }
  const Event& last_sent() const { return halves_[turn_].sent; }
  std::size_t bytes() const { return halves_[0].memory.size(); }

 private:
  struct Half {
    PinnedBuffer<std::byte> memory;
    Event sent;
  };
  std::array<Half, 2> halves_;
  std::size_t turn_ = 0;
};

/// The inputs: float32 on the host, of the network's type on the device. They cross over on a stream of their
/// own while the device computes the pass before; what then waits on the compute stream is a copy within the
/// device.
class InputFeed {
 public:
  explicit InputFeed(Context& context);
  void upload(void* to, DataType type, std::span<const float> from);

 private:
  /// Where one half lands.
  struct Landing {
    void* memory = nullptr;
    Event taken;
  };
  Context& context_;
  Stream transfer_;
  std::optional<Staging> staging_;
  std::array<Landing, 2> landings_;
};

/// Step, labels and lengths: PassState and the arrays beside it, in one copy.
class PassFeed {
 public:
  /// Points the context at its memory.
  PassFeed(Context& context, std::int64_t batch, std::int64_t frames, std::int64_t classes);
  /// Error where a label is no class.
  void upload(const Pass& pass, std::span<const std::int32_t> labels);

 private:
  Context& context_;
  std::int64_t batch_, frames_, classes_;
  std::size_t lengths_at_, labels_at_, bytes_;
  std::byte* device_;
  Staging staging_;
};

}  // namespace lpsgd::cuda
