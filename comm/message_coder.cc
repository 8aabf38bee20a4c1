#include "comm/message_coder.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "comm/coder.h"
#include "comm/transport.h"
#include "core/error.h"

namespace lpsgd {
namespace {

/// For mistakes of the caller, which may be another program.
void must(bool holds, const char* message) {
  if (!holds) throw Error(message);
}

std::vector<float> finite(std::span<const float> values) {
  std::vector<float> out(values.begin(), values.end());
  for (float& value : out)
    if (!std::isfinite(value)) value = 0;
  return out;
}

}  // namespace

/// The ranks as coders see them. Its messages are moved by the caller.
class MessageCoder::Elsewhere final : public Transport {
 public:
  explicit Elsewhere(const Options& options) : options_(options) {}
  int rank() const override { return options_.rank; }
  int size() const override { return options_.ranks; }
  const char* name() const override { return "another program's"; }
  int local_rank() const override { return options_.rank; }
  int local_size() const override { return options_.ranks; }
  bool takes_device_memory() const override { return options_.device.is_cuda(); }
  bool ordered() const override { return options_.device.is_cuda(); }
  StreamView stream() const override { return options_.messages; }

  Request isend(std::span<const std::byte>, int, int) override { throw not_here(); }
  Request irecv(std::span<std::byte>, int, int) override { throw not_here(); }
  Request iallreduce(std::span<float>) override { throw not_here(); }
  bool test(Request) override { throw not_here(); }
  Collectives& collectives() override { throw not_here(); }
  void abort(int) noexcept override {}
  void cancel() noexcept override {}

 private:
  static Error not_here() { return Error("messages of this exchange are moved by another program"); }
  const Options options_;
};

struct MessageCoder::Bucket {
  enum class State : std::uint8_t { idle, encoded, reduced };

  std::vector<std::size_t> tensors;
  std::vector<float*> gradients;
  Unit unit;
  std::unique_ptr<UnitCoder> coder;
  State state = State::idle;  // in this step
};

MessageCoder::MessageCoder(const std::vector<TensorInfo>& tensors, const std::vector<CodecSpec>& codecs,
                           const Options& options)
    : options_(options),
      transport_(std::make_unique<Elsewhere>(options)),
      shared_(new ExchangeShared{.transport = *transport_, .blocks = {options.ranks}, .seed = options.seed}) {
  must(tensors.size() == codecs.size(), "the exchange needs one codec per tensor");
  must(options.ranks >= 1 && options.rank >= 0 && options.rank < options.ranks,
       "the rank lies outside the number of ranks");
  for (std::size_t t = 0; t < tensors.size(); ++t)
    shared_->tensors.push_back(
        make_exchange_tensor(tensors[t], codecs[t], t, options.rank, {options.ranks}, true));
  owners_.resize(static_cast<std::size_t>(options.ranks));
  std::iota(owners_.begin(), owners_.end(), 0);
  ExchangeOptions exchange;
  exchange.device = options.device;
  exchange.compute = options.gradients;
  coder_ = make_coder(*shared_, exchange);
}

MessageCoder::~MessageCoder() {
  coder_->drain();
}

std::size_t MessageCoder::add_bucket(std::vector<std::size_t> tensors, std::span<float* const> gradients) {
  must(!tensors.empty() && tensors.size() == gradients.size(), "a bucket has tensors, each with a gradient");
  for (const std::size_t t : tensors) {
    must(t < shared_->tensors.size(), "a bucket holds a tensor that is not there");
    must(!open_ || !coded_[t], "a bucket is made of a tensor that is encoded already in this step");
  }
  check_gradients(tensors, gradients);
  std::vector<std::size_t> sorted = tensors;
  std::ranges::sort(sorted);
  must(std::ranges::adjacent_find(sorted) == sorted.end(), "a bucket holds a tensor twice");
  constexpr std::int64_t any = std::numeric_limits<std::int64_t>::max();
  std::vector<Unit> units = make_plan(shared_->tensors, tensors, {{options_.ranks}, any, any});
  must(units.size() == 1, "a bucket holds no values");
  auto bucket = std::make_unique<Bucket>();
  bucket->tensors = std::move(tensors);
  bucket->gradients.assign(gradients.begin(), gradients.end());
  bucket->unit = std::move(units.front());
  use_gradients(*bucket);
  bucket->unit.ready_after = bucket->tensors.front() + 1;  // a number that no other bucket of a step has
  const NumberedUnit unit{&bucket->unit, buckets_.size()};
  bucket->coder = coder_->make_unit_coder({&unit, 1});
  bucket->coder->start(unit);
  buckets_.push_back(std::move(bucket));
  return buckets_.size() - 1;
}

void MessageCoder::move_bucket(std::size_t bucket, std::span<float* const> gradients) {
  must(!options_.device.is_cuda(), "a bucket is moved on a GPU");
  Bucket& b = at(bucket);
  must(gradients.size() == b.tensors.size(), "a bucket is moved with a gradient for each tensor");
  check_gradients(b.tensors, gradients);
  b.gradients.assign(gradients.begin(), gradients.end());
}

void MessageCoder::check_gradients(std::span<const std::size_t> tensors,
                                   std::span<float* const> gradients) const {
  for (std::size_t i = 0; i < tensors.size(); ++i)
    must(gradients[i] != nullptr || shared_->tensors[tensors[i]].info.elements == 0,
         "a gradient of a bucket is nowhere");
}

void MessageCoder::use_gradients(const Bucket& bucket) {
  for (std::size_t i = 0; i < bucket.tensors.size(); ++i)
    shared_->tensors[bucket.tensors[i]].gradient = bucket.gradients[i];
}

void MessageCoder::drop_bucket(std::size_t bucket) {
  must(!open_, "a bucket is dropped within a step");
  at(bucket);
  coder_->drain();
  buckets_[bucket].reset();
}

MessageCoder::Bucket& MessageCoder::at(std::size_t bucket) const {
  must(bucket < buckets_.size() && buckets_[bucket], "there is no bucket of this number");
  return *buckets_[bucket];
}

void MessageCoder::check_rank(int rank) const {
  must(rank >= 0 && rank < options_.ranks, "there is no such rank");
}
std::span<std::byte> MessageCoder::outgoing(std::size_t bucket, int owner) {
  check_rank(owner);
  return at(bucket).coder->outgoing(owner);
}
std::span<std::byte> MessageCoder::incoming(std::size_t bucket, int rank) {
  check_rank(rank);
  must(rank != options_.rank, "a rank receives no message of its own");
  return at(bucket).coder->incoming(rank);
}
std::span<std::byte> MessageCoder::mean(std::size_t bucket, int owner) {
  check_rank(owner);
  return at(bucket).coder->mean(owner);
}

void MessageCoder::begin(std::uint32_t step) {
  must(!open_, "begin() while a step is open");
  coder_->collect();
  reset_non_finite();
  coded_.assign(shared_->tensors.size(), false);
  open_ = true;
  shared_->step = step;
  coder_->begin_step();
}

void MessageCoder::reset_non_finite() {
  const std::vector<ExchangeTensor>& tensors = shared_->tensors;
  if (std::ranges::none_of(tensors, [](const ExchangeTensor& t) { return t.residual1 > 0; })) return;
  if (coder_->read_finite_flags(false) < 0) return;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (!tensors[t].own_finite) set_residual(t, 1, residual(t, 1));
    if (!tensors[t].mean_finite) set_residual(t, 2, residual(t, 2));
  }
}

void MessageCoder::encode(std::size_t bucket) {
  must(open_, "encode() without begin()");
  Bucket& b = at(bucket);
  must(std::ranges::none_of(b.tensors, [this](std::size_t t) { return coded_[t]; }),
       "a tensor is encoded twice in a step");
  for (const std::size_t t : b.tensors) coded_[t] = true;
  b.state = Bucket::State::encoded;
  if (!options_.device.is_cuda()) use_gradients(b);
  coder_->submitted(b.unit.ready_after, {});
  b.coder->start({&b.unit, bucket});
  b.coder->encode(owners_);
}

void MessageCoder::reduce(std::size_t bucket) {
  must(open_, "reduce() without begin()");
  Bucket& b = at(bucket);
  must(b.state == Bucket::State::encoded, "reduce() of a bucket that was not encoded just before");
  b.state = Bucket::State::reduced;
  if (transport_->ordered()) b.coder->queued();
  b.coder->reduce();
}

void MessageCoder::decode(std::size_t bucket) {
  must(open_, "decode() without begin()");
  Bucket& b = at(bucket);
  must(b.state == Bucket::State::reduced, "decode() of a bucket that was not reduced just before");
  b.state = Bucket::State::idle;
  if (transport_->ordered()) b.coder->queued();
  b.coder->decode(owners_);
}

void MessageCoder::end() {
  must(open_, "end() without begin()");
  must(std::ranges::all_of(buckets_, [](const auto& b) { return !b || b->state == Bucket::State::idle; }),
       "end() before every bucket of the step is decoded");
  coder_->waiting();
  coder_->end_step(0);
  coder_->joined();
  open_ = false;
}

MessageCoder::Seconds MessageCoder::take_seconds() {
  must(!open_, "take_seconds() while a step is open");
  coder_->collect();
  CodecClock& clock = shared_->clock;
  return {std::exchange(clock.encode, 0), std::exchange(clock.decode, 0)};
}

std::size_t MessageCoder::residual_size(std::size_t tensor, int round) const {
  must(tensor < shared_->tensors.size() && (round == 1 || round == 2), "there is no such residual");
  const ExchangeTensor& t = shared_->tensors[tensor];
  return round == 1 ? t.residual1 : t.residual2;
}

std::vector<float> MessageCoder::residual(std::size_t tensor, int round) const {
  must(!open_, "the residuals are read while a step is open");
  std::vector<float> values(residual_size(tensor, round));
  coder_->copy_residual(tensor, round, values);
  options_.gradients.synchronize();
  return finite(values);
}

void MessageCoder::set_residual(std::size_t tensor, int round, std::span<const float> values) {
  must(!open_, "the residuals are set while a step is open");
  const std::size_t size = residual_size(tensor, round);
  if (values.size() != size)
    throw Error(fmt::format("residual of tensor {}, round {}, rank {}: {} values, expected {}",
                            shared_->tensors[tensor].info.name, round, options_.rank, values.size(), size));
  coder_->set_residual(tensor, round, finite(values));
}

}  // namespace lpsgd
