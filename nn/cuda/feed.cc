#include "nn/cuda/feed.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/error.h"

namespace lpsgd::cuda {

Staging::Staging(Device device, std::size_t bytes)
    : halves_{Half{PinnedBuffer<std::byte>(device, bytes), Event(device)},
              Half{PinnedBuffer<std::byte>(device, bytes), Event(device)}} {}

std::byte* Staging::next() {
  turn_ = 1 - turn_;
  halves_[turn_].sent.synchronize();
  return halves_[turn_].memory.data();
}

void Staging::sent(StreamView stream) {
  halves_[turn_].sent.record(stream);
}

InputFeed::InputFeed(Context& context)
    : context_(context),
      transfer_(context.device),
      landings_{Landing{nullptr, Event(context.device)}, Landing{nullptr, Event(context.device)}} {}

void InputFeed::upload(void* to, DataType type, std::span<const float> from) {
  if (!staging_ || staging_->bytes() < from.size_bytes()) {
    transfer_.synchronize();
    context_.stream.synchronize();
    staging_.emplace(context_.device, from.size_bytes());
    for (Landing& l : landings_) l.memory = context_.allocate(static_cast<std::int64_t>(from.size_bytes()));
    context_.stream.synchronize();
  }
  std::byte* half = staging_->next();
  std::memcpy(half, from.data(), from.size_bytes());
  Landing& landing = landings_[staging_->turn()];
  transfer_.wait(landing.taken);
  copy_bytes(landing.memory, half, from.size_bytes(), transfer_);
  staging_->sent(transfer_);
  context_.stream.wait(staging_->last_sent());
  if (type == DataType::f32)
    copy_bytes(to, landing.memory, from.size_bytes(), context_.stream);
  else
    check(launch_convert(landing.memory, DataType::f32, to, type, static_cast<std::int64_t>(from.size()),
                         context_.handle()));
  landing.taken.record(context_.stream);
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
  std::byte* half = staging_.next();
  auto* state = reinterpret_cast<PassState*>(half);
  auto* lengths = reinterpret_cast<std::int32_t*>(half + lengths_at_);
  auto* scored = reinterpret_cast<std::int32_t*>(half + labels_at_);
  *state = {pass.step, 0};
  for (std::int64_t n = 0; n < batch_; ++n) {
    // Every frame of the input, of which the loss may score fewer: the longest there can be where none is
    // given.
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
  copy_bytes(device_, half, bytes_, context_.stream);
  staging_.sent(context_.stream);
}

}  // namespace lpsgd::cuda
