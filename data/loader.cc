#include "data/loader.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <tuple>
#include <utility>

#include "core/buffer.h"
#include "core/error.h"
#include "core/philox.h"

namespace lpsgd {

namespace {

/// Turns an image of bytes into scaled floats, with augmentation. Both are (H, W, C).
class Transform {
 public:
  Transform(const Dataset& dataset, const DataOptions& data, bool augment, std::uint32_t seed)
      : height_(dataset.height()),
        width_(dataset.width()),
        channels_(dataset.channels()),
        pad_(augment ? data.augment.pad : 0),
        mirror_(augment && data.augment.mirror),
        seed_(seed),
        table_(static_cast<std::size_t>(channels_)) {
    const Normalization norm = normalization(data, channels_);
    for (std::size_t c = 0; c < table_.size(); ++c) {
      for (std::size_t x = 0; x < 256; ++x)
        table_[c][x] = (static_cast<float>(x) / 255.0f - static_cast<float>(norm.mean[c])) /
                       static_cast<float>(norm.std[c]);
    }
  }

  void apply(std::span<const std::uint8_t> in, std::int64_t sample, std::int64_t epoch, float* out) const {
    if (pad_ == 0 && !mirror_) {
      row(in.data(), width_ * height_, channels_, out);
      return;
    }
    PhiloxSequence random(seed_, RandomUse::augmentation, static_cast<std::uint32_t>(sample),
                          static_cast<std::uint32_t>(epoch));
    const auto offsets = static_cast<std::uint32_t>(2 * pad_ + 1);
    const std::int64_t down = random.below(offsets) - pad_, across = random.below(offsets) - pad_;
    const bool flip = mirror_ && (random.next() & 1u) != 0;

    // Columns [first, last) of the crop lie in the image.
    const std::int64_t first = std::clamp(-across, std::int64_t{0}, width_);
    const std::int64_t last = std::clamp(width_ - across, std::int64_t{0}, width_);
    for (std::int64_t y = 0; y < height_; ++y, out += width_ * channels_) {
      const std::int64_t from = y + down;
      if (from < 0 || from >= height_ || first >= last) {
        black(0, width_, flip, out);
        continue;
      }
      black(0, first, flip, out);
      const std::uint8_t* pixels = in.data() + (from * width_ + first + across) * channels_;
      if (flip)
        row(pixels, last - first, -channels_, out + (width_ - 1 - first) * channels_);
      else
        row(pixels, last - first, channels_, out + first * channels_);
      black(last, width_, flip, out);
    }
  }

 private:
  /// `count` pixels, each written `step` values after the one before.
  void row(const std::uint8_t* in, std::int64_t count, std::int64_t step, float* out) const {
    for (std::int64_t x = 0; x < count; ++x, in += channels_, out += step) {
      for (std::int64_t c = 0; c < channels_; ++c) out[c] = table_[static_cast<std::size_t>(c)][in[c]];
    }
  }
  /// Padding at columns [begin, end) of the crop, before the flip.
  void black(std::int64_t begin, std::int64_t end, bool flip, float* line) const {
    if (flip) std::tie(begin, end) = std::pair(width_ - end, width_ - begin);
    for (std::int64_t x = begin; x < end; ++x) {
      for (std::int64_t c = 0; c < channels_; ++c)
        line[x * channels_ + c] = table_[static_cast<std::size_t>(c)][0];
    }
  }

  std::int64_t height_, width_, channels_, pad_;
  bool mirror_;
  std::uint32_t seed_;
  std::vector<std::array<float, 256>> table_;  // (C, 256): the scaled value of every byte
};

}  // namespace

std::vector<std::int64_t> epoch_order(std::int64_t size, bool shuffle, std::uint32_t seed,
                                      std::int64_t epoch) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  if (!shuffle) return order;
  // Fisher and Yates, from the end.
  PhiloxSequence random(seed, RandomUse::shuffle, static_cast<std::uint32_t>(epoch));
  for (std::size_t left = order.size(); left > 1; --left)
    std::swap(order[left - 1], order[random.below(static_cast<std::uint32_t>(left))]);
  return order;
}

/// One thread fills a ring of buffers in order, and the caller takes them in order. There is one buffer more
/// than `prefetch`, because the buffer that the caller took last must not change until its next call.
struct Loader::Impl {
  struct Slot {
    Buffer<float> images;
    Buffer<std::int32_t> labels;
    std::int64_t valid = 0;
  };

  std::shared_ptr<const Dataset> dataset;
  LoaderOptions options;
  bool shuffle;
  Transform transform;
  std::int64_t local;                   // samples of a batch on this rank
  std::int64_t begin = 0, samples = 0;  // evaluation: this rank's samples
  std::int64_t count = 0;               // batches of an epoch
  std::int64_t image_size;
  std::vector<std::int64_t> order;  // the loader thread's
  std::vector<Slot> ring;

  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by the mutex. `run` is also read without it, to leave a dropped epoch early.
  std::atomic<std::uint64_t> run{0};  // counts calls of start(); the work of an older run is dropped
  bool stopping = false;
  std::int64_t epoch = 0, first = 0;
  std::int64_t filled = 0, taken = 0;  // batches of this run: filled by the thread, taken by the caller
  std::exception_ptr failure;

  std::thread thread;

  Impl(std::shared_ptr<const Dataset> set, const DataOptions& data, const LoaderOptions& o)
      : dataset(std::move(set)),
        options(o),
        shuffle(o.training && data.shuffle),
        transform(*dataset, data, o.training, o.seed),
        local(o.global_batch / o.ranks),
        image_size(dataset->height() * dataset->width() * dataset->channels()) {
    const std::int64_t size = dataset->size();
    if (options.training) {
      count = size / options.global_batch;
    } else {
      begin = options.rank * size / options.ranks;
      samples = (options.rank + 1) * size / options.ranks - begin;
      count = (samples + local - 1) / local;
    }
    ring.resize(static_cast<std::size_t>(options.prefetch) + 1);
    for (Slot& slot : ring) {
      slot.images = Buffer<float>(static_cast<std::size_t>(local * image_size));
      slot.labels = Buffer<std::int32_t>(static_cast<std::size_t>(local));
    }
    thread = std::thread([this] { work(); });
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
      ++run;
    }
    changed.notify_all();
    thread.join();
  }

  void work() {
    std::unique_lock lock(mutex);
    std::uint64_t current = 0;
    while (true) {
      changed.wait(lock, [&] { return stopping || run != current; });
      if (stopping) return;
      current = run;
      try {
        fill_epoch(lock, current);
      } catch (...) {
        if (!lock.owns_lock()) lock.lock();
        if (run == current) failure = std::current_exception();
        changed.notify_all();
      }
    }
  }

  void fill_epoch(std::unique_lock<std::mutex>& lock, std::uint64_t current) {
    const std::int64_t number = epoch, from = first;
    lock.unlock();
    if (options.training) order = epoch_order(dataset->size(), shuffle, options.seed, number);
    for (std::int64_t b = from; b < count; ++b) {
      lock.lock();
      // The buffer is free once the caller has taken the batch after the one that it held.
      changed.wait(lock, [&] {
        return run != current || filled - taken < static_cast<std::int64_t>(ring.size()) - 1;
      });
      if (run != current) return;
      Slot& slot = ring[static_cast<std::size_t>(filled) % ring.size()];
      lock.unlock();
      fill(slot, b, number, current);
      lock.lock();
      if (run != current) return;
      ++filled;
      changed.notify_all();
      lock.unlock();
    }
    lock.lock();
  }

  void fill(Slot& slot, std::int64_t batch, std::int64_t number, std::uint64_t current) const {
    slot.valid = options.training ? local : std::min(local, samples - batch * local);
    for (std::int64_t i = 0; i < slot.valid; ++i) {
      if (run.load(std::memory_order_relaxed) != current) return;
      const std::int64_t sample =
          options.training
              ? order[static_cast<std::size_t>(batch * options.global_batch + options.rank * local + i)]
              : begin + batch * local + i;
      transform.apply(dataset->image(sample), sample, number, slot.images.data() + i * image_size);
      slot.labels[static_cast<std::size_t>(i)] = dataset->label(sample);
    }
    std::fill(slot.images.begin() + slot.valid * image_size, slot.images.end(), 0.0f);
    std::fill(slot.labels.begin() + slot.valid, slot.labels.end(), 0);
  }
};

Loader::Loader(std::shared_ptr<const Dataset> dataset, const DataOptions& data,
               const LoaderOptions& options) {
  require(dataset != nullptr, "a loader needs a data set");
  require(options.ranks >= 1 && options.rank >= 0 && options.rank < options.ranks,
          "a loader's rank must be below its number of ranks");
  require(options.prefetch >= 1, "a loader prefetches at least one batch");
  if (options.global_batch < 1 || options.global_batch % options.ranks != 0)
    throw ConfigError(fmt::format("train.batch_size: {} samples cannot be shared equally by {} ranks",
                                  options.global_batch, options.ranks));
  if (options.training && dataset->size() < options.global_batch)
    throw ConfigError(
        fmt::format("train.batch_size: the training set has {} samples, fewer than one global batch of {}",
                    dataset->size(), options.global_batch));
  impl_ = std::make_unique<Impl>(std::move(dataset), data, options);
}

Loader::~Loader() = default;

std::int64_t Loader::batches() const {
  return impl_->count;
}

void Loader::start(std::int64_t epoch, std::int64_t first) {
  require(epoch >= 0 && first >= 0 && first <= impl_->count, "a loader starts at a batch of an epoch");
  {
    const std::lock_guard lock(impl_->mutex);
    ++impl_->run;
    impl_->epoch = epoch;
    impl_->first = first;
    impl_->filled = impl_->taken = 0;
    impl_->failure = nullptr;
  }
  impl_->changed.notify_all();
}

Batch Loader::next() {
  Impl& impl = *impl_;
  std::unique_lock lock(impl.mutex);
  require(impl.run > 0 && impl.first + impl.taken < impl.count, "no batch is left in the loader's epoch");
  impl.changed.wait(lock, [&] { return impl.filled > impl.taken || impl.failure; });
  if (impl.filled == impl.taken) std::rethrow_exception(impl.failure);
  const Impl::Slot& slot = impl.ring[static_cast<std::size_t>(impl.taken) % impl.ring.size()];
  ++impl.taken;
  lock.unlock();
  impl.changed.notify_all();
  return {slot.images, slot.labels, slot.valid};
}

}  // namespace lpsgd
