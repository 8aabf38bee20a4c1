#include "nn/cuda/feed.h"

#include <fmt/format.h>

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
      received_{Received{nullptr, Event(context.device), Event(context.device)},
                Received{nullptr, Event(context.device), Event(context.device)}} {}

const void* InputFeed::receive(std::span<const std::byte> from, Event* read) {
  if (bytes_ < from.size()) {
    transfer_.synchronize();
    context_.stream.synchronize();
    for (Received& b : received_) b.memory = context_.allocate(static_cast<std::int64_t>(from.size()));
    context_.stream.synchronize();
    bytes_ = from.size();
  }
  index_ = 1 - index_;
  Received& received = received_[index_];
  transfer_.wait(received.released);
  copy_bytes(received.memory, from.data(), from.size(), transfer_);
  if (read) read->record(transfer_);
  received.arrived.record(transfer_);
  context_.stream.wait(received.arrived);
  return received.memory;
}

void InputFeed::release() {
  received_[index_].released.record(context_.stream);
}

void InputFeed::upload(void* to, DataType type, std::span<const float> from, Event* read) {
  const void* received = receive(std::as_bytes(from), read);
  if (type == DataType::f32)
    copy_bytes(to, received, from.size_bytes(), context_.stream);
  else
    check(launch_convert(received, DataType::f32, to, type, static_cast<std::int64_t>(from.size()),
                         context_.handle()));
  release();
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
      crops_at_(lengths_at_ + aligned(static_cast<std::size_t>(batch) * sizeof(std::int32_t))),
      continues_at_(crops_at_ + aligned(static_cast<std::size_t>(batch) * sizeof(PixelCrop))),
      labels_at_(continues_at_ + aligned(static_cast<std::size_t>(batch) * sizeof(std::int32_t))),
      bytes_(labels_at_ + aligned(static_cast<std::size_t>(batch * frames) * sizeof(std::int32_t))),
      device_(static_cast<std::byte*>(context.allocate(static_cast<std::int64_t>(bytes_)))),
      staging_(context.device, bytes_) {
  context.pass = reinterpret_cast<const PassState*>(device_);
  context.lengths = reinterpret_cast<const std::int32_t*>(device_ + lengths_at_);
  context.crops = reinterpret_cast<const PixelCrop*>(device_ + crops_at_);
  context.continues = reinterpret_cast<const std::int32_t*>(device_ + continues_at_);
  context.labels = reinterpret_cast<const std::int32_t*>(device_ + labels_at_);
}

void PassFeed::upload(const Pass& pass, std::span<const std::int32_t> labels) {
  std::byte* host = staging_.next();
  auto* state = reinterpret_cast<PassState*>(host);
  auto* lengths = reinterpret_cast<std::int32_t*>(host + lengths_at_);
  auto* crops = reinterpret_cast<PixelCrop*>(host + crops_at_);
  auto* continues = reinterpret_cast<std::int32_t*>(host + continues_at_);
  auto* scored = reinterpret_cast<std::int32_t*>(host + labels_at_);
  *state = {pass.step, static_cast<std::uint32_t>(pass.first)};
  std::int64_t count = 0;
  for (std::int64_t n = 0; n < batch_; ++n) {
    // Without lengths every frame counts. The input may have more frames than the loss scores, so the length
    // is the largest number.
    const auto length = static_cast<std::int32_t>(pass.length(n, std::numeric_limits<std::int32_t>::max()));
    lengths[n] = length;
    crops[n] = pass.crops.empty() ? PixelCrop{} : pass.crops[static_cast<std::size_t>(n)];
    continues[n] = pass.is_continued(n) ? 1 : 0;
    for (std::int64_t t = 0; t < frames_; ++t) {
      const std::int64_t row = n * frames_ + t;
      const std::int32_t given = labels[static_cast<std::size_t>(row)];
      const bool counts = n < pass.valid && t < length && given != -1;
      const std::int32_t label = counts ? given : -1;
      if (counts && (label < 0 || label >= classes_))
        throw Error(fmt::format("a label is {}, but the network has {} classes", label, classes_));
      scored[row] = label;
      count += counts;
    }
  }
  state->loss_divisor = pass.loss_divisor > 0 ? pass.loss_divisor : static_cast<double>(count);
  copy_bytes(device_, host, bytes_, context_.stream);
  staging_.record_copies(context_.stream);
}

}  // namespace lpsgd::cuda
