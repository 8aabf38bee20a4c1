#include "data/micro_batches.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace lpsgd {

namespace {

class MicroBatches final : public BatchSource {
 public:
  MicroBatches(std::unique_ptr<BatchSource> whole, std::int64_t parts)
      : whole_(std::move(whole)), parts_(parts), samples_(whole_->shape().samples / parts) {
    require(parts >= 1 && samples_ * parts == whole_->shape().samples, "micro-batches divide a batch evenly");
  }

  BatchShape shape() const override {
    BatchShape out = whole_->shape();
    out.samples = samples_;
    return out;
  }
  std::int64_t batches() const override { return parts_ * whole_->batches(); }
  void begin_epoch(std::int64_t epoch) override { whole_->begin_epoch(epoch); }
  BatchCounts counts(std::int64_t batch) const override {
    BatchCounts out = whole_->counts(batch / parts_);
    out.micro_batch = batch % parts_;
    out.valid = std::clamp<std::int64_t>(out.valid - first(batch), 0, samples_);
    return out;
  }
  std::unique_ptr<Worker> make_worker() const override { return whole_->make_worker(); }
  void fill(Worker& worker, std::int64_t batch, std::int64_t position, const SampleView& out) const override {
    whole_->fill(worker, batch / parts_, first(batch) + position, out);
  }

 private:
  /// The position of its first sample in the whole batch.
  std::int64_t first(std::int64_t batch) const { return batch % parts_ * samples_; }

  const std::unique_ptr<BatchSource> whole_;
  const std::int64_t parts_, samples_;
};

}  // namespace

std::unique_ptr<BatchSource> make_micro_batches(std::unique_ptr<BatchSource> whole, std::int64_t parts) {
  return std::make_unique<MicroBatches>(std::move(whole), parts);
}

}  // namespace lpsgd
