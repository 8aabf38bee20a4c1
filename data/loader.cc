#include "data/loader.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>

#include "core/buffer.h"
#include "core/error.h"
#include "core/log.h"

namespace lpsgd {

namespace {

/// The memory of one batch.
class Slot {
 public:
  Slot(const BatchShape& shape, Device device)
      : shape_(shape), read(device, Event::Timing::off, Event::Wait::sleep) {
    const auto samples = static_cast<std::size_t>(shape.samples);
    const auto elements = samples * static_cast<std::size_t>(shape.elements);
    if (shape.image)
      pixels_ = PinnedBuffer<std::uint8_t>(device, elements);
    else
      values_ = PinnedBuffer<float>(device, elements);
    labels_ = Buffer<std::int32_t>(samples * static_cast<std::size_t>(shape.labels));
    if (shape.has_crops) crops_ = Buffer<PixelCrop>(samples);
    if (shape.has_lengths) lengths_ = Buffer<std::int32_t>(samples);
    if (shape.has_continues) continues_ = Buffer<std::int32_t>(samples);
  }

  SampleView at(std::int64_t i) {
    const auto of = [](auto& buffer, std::int64_t offset) {
      return buffer.size() == 0 ? nullptr : buffer.data() + offset;
    };
    return {of(pixels_, i * shape_.elements),
            of(values_, i * shape_.elements),
            of(labels_, i * shape_.labels),
            of(crops_, i),
            of(lengths_, i),
            of(continues_, i)};
  }

  void clear(std::int64_t i) {
    const SampleView view = at(i);
    if (view.pixels) std::fill_n(view.pixels, shape_.elements, std::uint8_t{0});
    if (view.values) std::fill_n(view.values, shape_.elements, 0.0f);
    std::fill_n(view.labels, shape_.labels, 0);
    if (view.crop) *view.crop = {};
    if (view.length) *view.length = 0;
    if (view.continues) *view.continues = 0;
  }

  Batch batch() {
    Batch out;
    out.pixels = pixels_.view();
    out.crops = crops_.view();
    out.values = values_.view();
    out.labels = labels_.view();
    out.lengths = lengths_.view();
    out.continues = continues_.view();
    std::ranges::stable_sort(bad, {}, &BadSample::position);
    errors_.clear();
    for (BadSample& b : bad) errors_.push_back(std::move(b.error));
    out.bad_samples = errors_;
    out.valid = counts.valid;
    out.global_frames = counts.global_frames;
    out.micro_batch = counts.micro_batch;
    out.read = &read;
    return out;
  }

 private:
  BatchShape shape_;
  PinnedBuffer<std::uint8_t> pixels_;
  PinnedBuffer<float> values_;
  Buffer<std::int32_t> labels_, lengths_, continues_;
  Buffer<PixelCrop> crops_;
  std::vector<std::string> errors_;

 public:
  struct BadSample {
    std::int64_t position;
    std::string error;
  };
  std::vector<BadSample> bad;  // in any order
  BatchCounts counts;
  std::int64_t left = 0;  // samples that are not yet filled
  Event read;             // the device has read what the slot held before
};

/// How many samples a thread takes at a time: enough that taking them costs little.
std::int64_t samples_of_group(const BatchShape& shape) {
  constexpr std::int64_t group_bytes = 64 << 10;
  const std::int64_t sample_bytes = std::max<std::int64_t>(1, shape.elements * (shape.image ? 1 : 4));
  return std::clamp<std::int64_t>(group_bytes / sample_bytes, 1, std::max<std::int64_t>(1, shape.samples));
}

}  // namespace

/// The threads take groups of samples in order, fill them in a ring of slots, and so may work on several
/// batches at a time. The caller takes whole batches in order. There is one slot more than `prefetch`,
/// because the slot that the caller took last must not change until its next call.
struct Loader::Impl {
  /// Samples [begin, end) of a batch.
  struct Group {
    std::int64_t batch = 0, begin = 0, end = 0;
  };
  struct Failure {
    std::int64_t batch = 0, position = 0;
    std::exception_ptr error;
  };

  std::unique_ptr<BatchSource> source;
  const BatchShape shape;
  const std::int64_t count, group_size;
  const double longest_wait;
  const char* const limited_by;
  std::vector<Slot> ring;
  std::vector<std::unique_ptr<BatchSource::Worker>> workers;

  std::mutex mutex;
  std::condition_variable work, ready;  // for the threads, for the caller
  // Guarded by the mutex. `run` is also read without it, to leave a dropped epoch early.
  std::atomic<std::uint64_t> run{0};  // counts calls of start(); the work of an older run is dropped
  std::uint64_t prepared = 0;         // the run whose epoch has begun in the source
  bool preparing = false, stopping = false;
  int busy = 0;  // threads that fill a group
  std::int64_t epoch = 0, first = 0;
  std::int64_t taken = 0;                        // batches of this run that the caller took
  std::int64_t next_batch = 0, next_sample = 0;  // the first that no thread has taken
  Failure failure;                               // the first in order, if it has an error

  std::vector<std::thread> threads;

  Impl(std::unique_ptr<BatchSource> batches, const LoaderOptions& options)
      : source(std::move(batches)),
        shape(source->shape()),
        count(source->batches()),
        group_size(samples_of_group(shape)),
        longest_wait(options.longest_wait),
        limited_by(options.limited_by) {
    for (std::int64_t s = 0; s <= options.prefetch; ++s) ring.emplace_back(shape, options.device);
    for (int w = 0; w < options.workers; ++w) workers.push_back(source->make_worker());
    threads.reserve(workers.size());
    try {
      for (auto& worker : workers)
        threads.emplace_back([this, &w = *worker, device = options.device] {
          const ScopedDevice scope(device);
          run_thread(w);
        });
    } catch (const std::system_error& e) {
      stop();
      throw Error(fmt::format("data.workers: thread {} of {} cannot be started: {}", threads.size() + 1,
                              options.workers, e.code().message()));
    } catch (...) {
      stop();
      throw;
    }
  }

  ~Impl() { stop(); }

  void stop() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
      ++run;
    }
    work.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  Slot& slot_of(std::int64_t batch) { return ring[static_cast<std::size_t>(batch - first) % ring.size()]; }

  bool must_prepare() const { return prepared != run && !preparing && busy == 0; }
  bool has_group() const {
    // A slot is free once the caller has taken the batch after the one that it held.
    return run > 0 && prepared == run && !failure.error && next_batch < count &&
           next_batch - first - taken < static_cast<std::int64_t>(ring.size()) - 1;
  }
  bool is_done(std::int64_t batch) {
    return prepared == run && batch < next_batch && slot_of(batch).left == 0;
  }

  void run_thread(BatchSource::Worker& worker) {
    std::unique_lock lock(mutex);
    while (true) {
      work.wait(lock, [&] { return stopping || must_prepare() || has_group(); });
      if (stopping) return;
      if (must_prepare())
        prepare(lock);
      else
        fill_group(lock, worker);
    }
  }

  void prepare(std::unique_lock<std::mutex>& lock) {
    const std::uint64_t current = run;
    const std::int64_t number = epoch;
    preparing = true;
    lock.unlock();
    std::exception_ptr error;
    try {
      source->begin_epoch(number);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    preparing = false;
    prepared = current;
    if (run == current && error) fail({first, 0, error});
  }

  Group take_group() {
    Slot& slot = slot_of(next_batch);
    if (next_sample == 0) {
      slot.bad.clear();
      slot.counts = source->counts(next_batch);
      slot.left = shape.samples;
    }
    const Group group{next_batch, next_sample, std::min(next_sample + group_size, shape.samples)};
    next_sample = group.end;
    if (next_sample == shape.samples) {
      next_sample = 0;
      ++next_batch;
    }
    return group;
  }

  void fill_group(std::unique_lock<std::mutex>& lock, BatchSource::Worker& worker) {
    const std::uint64_t current = run;
    const Group group = take_group();
    Slot& slot = slot_of(group.batch);
    ++busy;
    if (has_group()) work.notify_one();
    lock.unlock();
    Failure failed{group.batch, group.begin, nullptr};
    try {
      slot.read.synchronize();
      for (; failed.position < group.end && run.load(std::memory_order_relaxed) == current;
           ++failed.position) {
        if (failed.position >= slot.counts.valid) {
          slot.clear(failed.position);
          continue;
        }
        source->fill(worker, group.batch, failed.position, slot.at(failed.position));
        if (!worker.bad_samples.empty()) note_bad(slot, failed.position, worker);
      }
    } catch (...) {
      failed.error = std::current_exception();
      worker.bad_samples.clear();
    }
    lock.lock();
    --busy;
    if (run != current) return;
    if (failed.error)
      fail(failed);
    else
      slot.left -= group.end - group.begin;
    if (slot.left == 0 || (failure.error && busy == 0)) ready.notify_one();
  }

  void note_bad(Slot& slot, std::int64_t position, BatchSource::Worker& worker) {
    const std::lock_guard lock(mutex);
    for (std::string& error : worker.bad_samples) slot.bad.push_back({position, std::move(error)});
    worker.bad_samples.clear();
  }

  /// Until the batch is there, or has failed. Counts seconds, so that one in which the process is stopped is
  /// one.
  void wait_for(std::int64_t batch, std::unique_lock<std::mutex>& lock) {
    const auto has_come = [&] { return is_done(batch) || (failure.error && busy == 0); };
    for (int seconds = 0; !ready.wait_for(lock, std::chrono::seconds(1), has_come);) {
      ++seconds;
      const bool is_over = longest_wait > 0 && seconds >= longest_wait;
      if (!is_over && seconds % 30 != 0) continue;
      const std::string text = fmt::format("the samples of batch {} of epoch {} have not been read for {} s",
                                           batch + 1, epoch + 1, seconds);
      if (is_over) throw StalledError(fmt::format("{}, as long as {} allows", text, limited_by));
      log::warn("{}", text);
    }
  }

  /// Samples before a failed one were taken before it, so the first failure is known once no thread is busy.
  void fail(const Failure& failed) {
    if (!failure.error || std::tie(failed.batch, failed.position) < std::tie(failure.batch, failure.position))
      failure = failed;
    if (busy == 0) ready.notify_one();
  }
};

Loader::Loader(std::unique_ptr<BatchSource> source, const LoaderOptions& options) {
  require(source != nullptr, "a loader needs a source of batches");
  require(options.workers >= 1, "a loader has at least one thread");
  require(options.prefetch >= 1, "a loader prefetches at least one batch");
  impl_ = std::make_unique<Impl>(std::move(source), options);
}

Loader::~Loader() = default;

const BatchShape& Loader::shape() const {
  return impl_->shape;
}

std::int64_t Loader::batches() const {
  return impl_->count;
}

void Loader::start(std::int64_t epoch, std::int64_t first) {
  require(epoch >= 0 && first >= 0 && first <= impl_->count, "a loader starts at a batch of an epoch");
  {
    const std::lock_guard lock(impl_->mutex);
    ++impl_->run;
    impl_->epoch = epoch;
    impl_->first = impl_->next_batch = first;
    impl_->next_sample = impl_->taken = 0;
    impl_->failure = {};
  }
  impl_->work.notify_one();
}

Batch Loader::next() {
  Impl& impl = *impl_;
  std::unique_lock lock(impl.mutex);
  const std::int64_t batch = impl.first + impl.taken;
  require(impl.run > 0 && batch < impl.count, "no batch is left in the loader's epoch");
  impl.wait_for(batch, lock);
  if (!impl.is_done(batch)) std::rethrow_exception(impl.failure.error);
  Slot& slot = impl.slot_of(batch);
  ++impl.taken;
  lock.unlock();
  impl.work.notify_one();
  return slot.batch();
}

}  // namespace lpsgd
