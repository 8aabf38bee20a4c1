#include "nn/cuda/feed.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/error.h"

namespace lpsgd::cuda {

Staging::Staging(Device device, std::size_t bytes)
    : buffers_{HostBuffer{PinnedBuffer<std::byte>(device, bytes), Event(device)},
               HostBuffer{PinnedBuffer<std::byte>(device, bytes), Event(device)}} {}

std::byte* Staging::next() {
  index_ = 1 - index_;
  buffers_[index_].copied.synchronize();
  return buffers_[index_].memory.data();
}

void Staging::record_copies(StreamView stream) {
  buffers_[index_].copied.record(stream);
}

InputFeed::InputFeed(Context& context)
    : context_(context),
      transfer_(context.device),
      received_{Received{nullptr, Event(context.device)}, Received{nullptr, Event(context.device)}} {}

void InputFeed::upload(void* to, DataType type, std::span<const float> from) {
  if (!staging_ || staging_->bytes() < from.size_bytes()) {
    transfer_.synchronize();
    context_.stream.synchronize();
    staging_.emplace(context_.device, from.size_bytes());
    for (Received& b : received_) b.memory = context_.allocate(static_cast<std::int64_t>(from.size_bytes()));
    context_.stream.synchronize();
  }
  std::byte* host = staging_->next();
  std::memcpy(host, from.data(), from.size_bytes());
  Received& received = received_[staging_->index()];
  transfer_.wait(received.consumed);
  copy_bytes(received.memory, host, from.size_bytes(), transfer_);
  staging_->record_copies(transfer_);
  context_.stream.wait(staging_->copied());
  if (type == DataType::f32)
    copy_bytes(to, received.memory, from.size_bytes(), context_.stream);
  else
    check(launch_convert(received.memory, DataType::f32, to, type, static_cast<std::int64_t>(from.size()),
                         context_.handle()));
  received.consumed.record(context_.stream);
}

namespace {

/// Scales on the host.
class HostPixelInput final : public PixelInput {
 public:
  HostPixelInput(InputFeed& feed, const PixelDesc& desc)
      : feed_(feed),
        desc_(desc),
        table_(scaled_bytes(desc.norm)),
        scaled_(static_cast<std::size_t>(desc.batch * desc.sample.bytes())) {}
  void upload(std::span<const std::uint8_t> pixels, std::span<const PixelCrop> crops, Event*) override {
    const ImageShape &in = desc_.stored, &out = desc_.sample;
    float* to = scaled_.data();
    for (std::int64_t n = 0; n < desc_.batch; ++n) {
      const PixelCrop crop = crops.empty() ? PixelCrop{} : crops[static_cast<std::size_t>(n)];
      for (std::int64_t y = 0; y < out.height; ++y) {
        for (std::int64_t x = 0; x < out.width; ++x, to += out.channels) {
          const std::int64_t row = y + crop.down;
          const std::int64_t column = (crop.mirrored ? out.width - 1 - x : x) + crop.across;
          const bool inside = row >= 0 && row < in.height && column >= 0 && column < in.width;
          for (std::int64_t c = 0; c < out.channels; ++c) {
            const auto at =
                static_cast<std::size_t>(n * in.bytes() + (row * in.width + column) * in.channels + c);
            to[c] = table_[static_cast<std::size_t>(c)][inside ? pixels[at] : 0];
          }
        }
      }
    }
    feed_.upload(desc_.output, desc_.type, scaled_);
  }

 private:
  InputFeed& feed_;
  PixelDesc desc_;
  std::vector<std::array<float, 256>> table_;
  std::vector<float> scaled_;
};

}  // namespace

std::unique_ptr<PixelInput> make_pixel_input(InputFeed& feed, const PixelDesc& desc) {
  return std::make_unique<HostPixelInput>(feed, desc);
}

namespace {

constexpr std::size_t aligned(std::size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

}  // namespace

PassFeed::PassFeed(Context& context, std::int64_t batch, std::int64_t frames, std::int64_t classes)
    : context_(context),
      batch_(batch),
      frames_(frames),
      classes_(classes),
      lengths_at_(aligned(sizeof(PassState))),
      labels_at_(lengths_at_ + aligned(static_cast<std::size_t>(batch) * sizeof(std::int32_t))),
      bytes_(labels_at_ + aligned(static_cast<std::size_t>(batch * frames) * sizeof(std::int32_t))),
      device_(static_cast<std::byte*>(context.allocate(static_cast<std::int64_t>(bytes_)))),
      staging_(context.device, bytes_) {
  context.pass = reinterpret_cast<const PassState*>(device_);
  context.lengths = reinterpret_cast<const std::int32_t*>(device_ + lengths_at_);
  context.labels = reinterpret_cast<const std::int32_t*>(device_ + labels_at_);
}

void PassFeed::upload(const Pass& pass, std::span<const std::int32_t> labels) {
  std::byte* host = staging_.next();
  auto* state = reinterpret_cast<PassState*>(host);
  auto* lengths = reinterpret_cast<std::int32_t*>(host + lengths_at_);
  auto* scored = reinterpret_cast<std::int32_t*>(host + labels_at_);
  *state = {pass.step, 0};
  for (std::int64_t n = 0; n < batch_; ++n) {
    // Without lengths every frame counts. The input may have more frames than the loss scores, so the length
    // is the largest number.
    const std::int32_t length = pass.lengths.empty() ? std::numeric_limits<std::int32_t>::max()
                                                     : pass.lengths[static_cast<std::size_t>(n)];
    lengths[n] = length;
    for (std::int64_t t = 0; t < frames_; ++t) {
      const std::int64_t row = n * frames_ + t;
      const bool counts = n < pass.valid && t < length;
      const std::int32_t label = counts ? labels[static_cast<std::size_t>(row)] : -1;
      if (counts && (label < 0 || label >= classes_))
        throw Error(fmt::format("a label is {}, but the network has {} classes", label, classes_));
      scored[row] = label;
      state->scored += counts;
    }
  }
  copy_bytes(device_, host, bytes_, context_.stream);
  staging_.record_copies(context_.stream);
}

}  // namespace lpsgd::cuda
