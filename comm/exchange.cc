#include "comm/exchange.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "comm/backoff.h"
#include "comm/coder.h"
#include "comm/device_coder.h"
#include "comm/exchange_plan.h"
#include "comm/exchange_tensor.h"
#include "comm/exchange_unit.h"
#include "core/capture.h"
#include "core/checksum.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"

namespace lpsgd {

struct Exchange::Impl {
  Impl(Transport& transport, std::vector<TensorInfo> infos, const std::vector<CodecSpec>& codecs,
       std::span<float> gradients, std::vector<std::size_t> announce_order, const ExchangeOptions& given);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void begin(std::uint32_t step);
  void submit(std::size_t tensor);
  std::vector<std::size_t> milestones() const;
  bool can_capture() const { return shared.transport.ordered() && !shared.trace && !plan_.empty(); }
  void launched();
  void finish();
  NonFinite check_finite(bool before);
  ExchangeStats take_stats();
  void take_errors(std::span<CodingError> sums);
  ExchangeState state() const;
  void set_state(const ExchangeState& state);

  const ExchangeOptions options;
  const std::vector<std::size_t> order;
  ExchangeShared shared;

 private:
  void make_tensors(const std::vector<TensorInfo>& infos, const std::vector<CodecSpec>& codecs,
                    std::span<float> gradients);
  void serve();      // the communication thread
  void run_steps();  // until stop
  void run_step();
  double poll_units();  // seconds in which units were in flight
  void queue_units();
  void wait_until_ready(std::size_t unit);
  void collect();
  void wake();  // the communication thread, with mutex_ held
  void warn_of_hang(std::size_t unit, double seconds) const;
  void rethrow_failure() {
    if (failure_) std::rethrow_exception(failure_);
  }

  ExchangeStats stats_;  // of the steps that have been collected
  std::unique_ptr<Coder> coder_;
  std::vector<Unit> plan_;
  std::vector<std::unique_ptr<UnitInFlight>> in_flight_;  // unit u is in slot u mod units_in_flight

  bool open_ = false;          // between begin() and finish()
  bool awake_ = false;         // the communication thread knows of this step
  std::size_t submitted_ = 0;  // tensors
  std::vector<std::int64_t> lowest_of_ranks_;
  std::uint64_t bytes_before_ = 0, messages_before_ = 0;  // the transport's, when the step began
  std::uint64_t captured_bytes_ = 0, captured_messages_ = 0;

  std::mutex mutex_;
  std::condition_variable wake_, finished_;
  bool working_ = false;  // a step that the communication thread has not finished
  std::exception_ptr failure_;
  std::atomic<std::size_t> available_{0};  // submitted tensors that may be exchanged now
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

Exchange::Impl::Impl(Transport& transport, std::vector<TensorInfo> infos,
                     const std::vector<CodecSpec>& codecs, std::span<float> gradients,
                     std::vector<std::size_t> announce_order, const ExchangeOptions& given)
    : options(given),
      order(std::move(announce_order)),
      shared{transport, {}, given.seed, 0, given.measure_error, {}, 0, 0, {}} {
  require(infos.size() == codecs.size(), "the exchange needs one codec per tensor");
  require(options.chunk_bytes > 0 && options.pack_bytes >= 0 && options.units_in_flight > 0,
          "the exchange's sizes must be positive");
  std::vector<bool> announced(infos.size(), false);
  for (const std::size_t t : order) {
    require(t < infos.size() && !announced[t],
            "the announce order names a tensor twice or one that is not there");
    announced[t] = true;
  }
  require(order.size() == infos.size(), "the announce order leaves a tensor out");
  make_tensors(infos, codecs, gradients);

  std::vector<PlannedTensor> planned;
  for (const ExchangeTensor& tensor : shared.tensors)
    planned.push_back({tensor.codec.get(), tensor.info.elements});
  PlanOptions plan{transport.size(), options.chunk_bytes, options.pack_bytes};
  if (options.collective != Collective::reduce_broadcast) {
    plan.chunk_bytes *= plan.owners;  // nobody owns a part: units are contiguous and as large
    plan.owners = 1;
  }
  plan_ = make_plan(planned, order, plan);
  lowest_of_ranks_.resize(static_cast<std::size_t>(transport.size()));
  if (transport.ordered()) {  // nothing there would notice messages of other sizes
    std::vector<std::size_t> sizes;
    for (const Unit& unit : plan_) sizes.insert(sizes.end(), unit.message.begin(), unit.message.end());
    if (!transport.all_equal(checksum64(std::as_bytes(std::span(sizes)))))
      throw CommError("the ranks' tensors or codecs differ, so that their messages would not match");
  }
  // Units that are queued are two behind each other (queue_units).
  const int in_flight = transport.ordered() ? std::max(3, options.units_in_flight) : options.units_in_flight;
  const auto slots = std::min(static_cast<std::size_t>(in_flight), plan_.size());
  // A unit has a message of either round under way to and from each other rank.
  transport.reserve(4 * slots);
  if (options.trace)
    shared.trace = std::make_unique<ExchangeTrace>(*options.trace, plan_, shared.tensors, slots);
  coder_ = make_coder(shared, options, order, plan_);
  for (std::size_t slot = 0; slot < slots; ++slot) {
    std::vector<NumberedUnit> units;
    for (std::size_t u = slot; u < plan_.size(); u += slots) units.push_back({&plan_[u], u});
    in_flight_.push_back(make_unit_in_flight(options.collective, shared, coder_->make_unit_coder(units)));
  }
  thread_ = std::thread([this] { serve(); });
}

void Exchange::Impl::make_tensors(const std::vector<TensorInfo>& infos, const std::vector<CodecSpec>& codecs,
                                  std::span<float> gradients) {
  const int ranks = shared.transport.size();
  shared.tensors.resize(infos.size());
  for (std::size_t t = 0; t < infos.size(); ++t) {
    ExchangeTensor& tensor = shared.tensors[t];
    tensor.info = infos[t];
    const auto elements = static_cast<std::size_t>(tensor.info.elements);
    require(tensor.info.offset >= 0 &&
                static_cast<std::size_t>(tensor.info.offset) + elements <= gradients.size(),
            "a tensor lies outside the gradient arena");
    tensor.gradient = gradients.data() + tensor.info.offset;
    const bool none = codecs[t].is_none();
    if (options.collective == Collective::allreduce && !none)
      throw ConfigError(
          fmt::format("exchange.collective: allreduce sums float32 and takes codec none only, but tensor {} "
                      "has codec {}; "
                      "allowed with it: reduce_broadcast, simulated",
                      tensor.info.name, to_text(codecs[t])));
    tensor.codec = make_codec(codecs[t], tensor.info);
    tensor.untouched = none && ranks == 1;
    tensor.permuted = is_permuted(tensor.info, codecs[t]);
    for (const Stripe& stripe : stripes(tensor.info.elements, tensor.codec->bucket(), ranks, t))
      if (stripe.owner == shared.transport.rank()) tensor.own = stripe;
    if (!tensor.codec->error_feedback()) continue;
    tensor.residual1 = elements;
    if (options.collective == Collective::reduce_broadcast)
      tensor.residual2 = static_cast<std::size_t>(tensor.own.last - tensor.own.first);
  }
}

Exchange::Impl::~Impl() {
  stop_ = true;
  {
    const std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  thread_.join();
  coder_->drain();
}

void Exchange::Impl::begin(std::uint32_t step) {
  const std::lock_guard lock(mutex_);
  rethrow_failure();
  require(!open_, "begin() while a step is open");
  collect();
  shared.transport.throw_if_failed();
  open_ = true;
  submitted_ = 0;
  available_ = 0;
  shared.step = step;
  shared.next_sum = 0;
  coder_->begin_step();
  awake_ = false;
}

void Exchange::Impl::wake() {
  if (!std::exchange(awake_, true)) {
    shared.bytes_sent = 0;
    bytes_before_ = shared.transport.bytes_sent();
    messages_before_ = shared.transport.messages_sent();
    working_ = true;
  }
  available_.store(submitted_, std::memory_order_release);
  wake_.notify_all();
}

void Exchange::Impl::submit(std::size_t tensor) {
  require(open_, "submit() without begin()");
  require(submitted_ < order.size() && order[submitted_] == tensor, "a tensor was submitted out of order");
  coder_->submitted(++submitted_);
  // One thread at a time makes a graph: finish() wakes the other. What it queues waits for the same
  // events.
  if (!options.overlap || (shared.transport.ordered() && is_capturing(options.compute))) return;
  const std::lock_guard lock(mutex_);
  if (failure_) {
    open_ = false;
    rethrow_failure();
  }
  wake();
}

void Exchange::Impl::finish() {
  require(open_, "finish() without begin()");
  require(submitted_ == order.size(), "finish() before every tensor was submitted");
  open_ = false;
  coder_->waiting();
  std::unique_lock lock(mutex_);
  wake();
  finished_.wait(lock, [&] { return !working_; });
  rethrow_failure();
  coder_->joined();
}

void Exchange::Impl::launched() {
  const bool launched = std::exchange(open_, false);
  require(!launched || submitted_ == 0, "a step that has begun otherwise is launched");
  coder_->launched(launched);
  if (!launched) {
    captured_bytes_ = shared.transport.bytes_sent() - bytes_before_;
    captured_messages_ = shared.transport.messages_sent() - messages_before_;
    return;
  }
  stats_.bytes_sent += shared.bytes_sent;  // of the step that was captured: all send the same
  shared.transport.launched(captured_bytes_, captured_messages_);
}

void Exchange::Impl::collect() {
  const Coder::Times times = coder_->collect();
  CodecClock& clock = shared.clock;
  stats_.encode += clock.encode;
  stats_.decode += clock.decode;
  stats_.transfer += std::max(0.0, times.busy - clock.encode - clock.decode);
  stats_.exposed += times.exposed;
  stats_.exposed_codec += clock.exposed;
  clock.encode = clock.decode = clock.exposed = 0;
}

ExchangeStats Exchange::Impl::take_stats() {
  require(!open_, "take_stats() while a step is open");
  collect();
  shared.transport.throw_if_failed();
  return std::exchange(stats_, {});
}

void Exchange::Impl::take_errors(std::span<CodingError> sums) {
  require(!open_ && shared.measure_error && sums.size() == shared.tensors.size(),
          "take_errors() needs measure_error, one sum per tensor and no open step");
  coder_->take_errors(sums);
}

void Exchange::Impl::serve() {
  prefer_short_sleeps();
  try {
    run_steps();
  } catch (...) {
    shared.transport.cancel();
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    working_ = false;
    finished_.notify_all();
  }
}

void Exchange::Impl::run_steps() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || working_; });
    }
    if (stop_) return;
    run_step();
    const std::lock_guard lock(mutex_);
    if (stop_) return;
    working_ = false;
    finished_.notify_all();
  }
}

void Exchange::Impl::run_step() {
  double busy = 0;
  if (shared.transport.ordered())
    queue_units();
  else
    busy = poll_units();
  if (stop_) return;
  coder_->end_step(busy);
  const std::lock_guard lock(mutex_);
  stats_.bytes_sent += shared.bytes_sent;
}

std::vector<std::size_t> Exchange::Impl::milestones() const {
  std::vector<std::size_t> out;
  for (const Unit& unit : plan_) {  // in the order of readiness
    const std::size_t tensor = order[unit.ready_after - 1];
    if (out.empty() || out.back() != tensor) out.push_back(tensor);
  }
  return out;
}

void Exchange::Impl::wait_until_ready(std::size_t unit) {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [&] { return stop_ || available_.load() >= plan_[unit].ready_after; });
}

double Exchange::Impl::poll_units() {
  const std::size_t slots = in_flight_.size();
  std::size_t oldest = 0, next = 0;  // units [oldest, next) are in flight
  double busy = 0, busy_since = 0, moved_at = 0, patience = 30;
  Backoff backoff;
  while (oldest < plan_.size()) {
    if (stop_) {
      if (oldest < next) shared.transport.cancel();
      return 0;
    }
    if (oldest == next) {
      if (busy_since > 0) busy += now_seconds() - busy_since;
      wait_until_ready(next);
      if (stop_) continue;
      busy_since = moved_at = now_seconds();
    }
    bool moved = false;
    for (; next < plan_.size() && next < oldest + slots &&
           available_.load(std::memory_order_acquire) >= plan_[next].ready_after &&
           in_flight_[next % slots]->free();
         ++next, moved = true)
      in_flight_[next % slots]->start({&plan_[next], next});
    for (std::size_t u = oldest; u < next; ++u) {
      if (!in_flight_[u % slots]->advance()) continue;
      moved = true;
      break;
    }
    for (; oldest < next && in_flight_[oldest % slots]->done(); ++oldest, moved = true)
      in_flight_[oldest % slots]->finish();
    if (moved) {
      backoff.reset();
      moved_at = 0;
    } else {
      backoff.pause();
      const double now = now_seconds();
      if (moved_at == 0) moved_at = now;
      if (now - moved_at < patience) continue;
      warn_of_hang(oldest, now - moved_at);
      patience *= 2;
    }
  }
  return busy_since > 0 ? busy + (now_seconds() - busy_since) : busy;
}

// The order of messages is the same on all ranks, and leaves the network no gap: while it carries one unit's
// first round, the unit before is reduced, and the one before that decoded.
void Exchange::Impl::queue_units() {
  const std::size_t slots = in_flight_.size(), units = plan_.size();
  const auto slot = [&](std::size_t u) -> UnitInFlight& { return *in_flight_[u % slots]; };
  for (std::size_t u = 0; u < units + 2; ++u) {
    if (u < units) {
      wait_until_ready(u);
      if (stop_) return u > 0 ? shared.transport.cancel() : void();
      slot(u).start({&plan_[u], u});
      while (!slot(u).under_way()) slot(u).advance();
    }
    if (u >= 1 && u - 1 < units) slot(u - 1).advance();
    if (u >= 2) {
      while (!slot(u - 2).done()) slot(u - 2).advance();
      slot(u - 2).finish();
    }
  }
}

void Exchange::Impl::warn_of_hang(std::size_t unit, double seconds) const {
  log::warn("step {}: the exchange of {} has waited {:.0f} s for rank {}", shared.step,
            shared.tensors[plan_[unit].segments.front().tensor].info.name, seconds,
            in_flight_[unit % in_flight_.size()]->waiting_for());
}

NonFinite Exchange::Impl::check_finite(bool before) {
  require(!open_, "check_finite() while a step is open");
  const std::int64_t step = coder_->read_finite_flags(before);
  shared.transport.throw_if_failed();  // what failed there has been let go with whatever values were at hand
  if (step < 0) return {};
  const auto tensors = static_cast<std::int64_t>(shared.tensors.size());
  std::int64_t lowest = tensors;
  // Otherwise means differ from rank to rank, or the transport does not promise that they are the same.
  bool seen_by_all = options.collective == Collective::reduce_broadcast;
  for (std::int64_t t = tensors - 1; t >= 0; --t) {
    const ExchangeTensor& tensor = shared.tensors[static_cast<std::size_t>(t)];
    const bool carried = tensor.codec->carries_non_finite();
    seen_by_all &= carried;
    if (!tensor.mean_finite || (!carried && !tensor.own_finite)) lowest = t;
  }
  if (!seen_by_all) {
    shared.transport.all_gather(std::as_bytes(std::span(&lowest, 1)),
                                std::as_writable_bytes(std::span(lowest_of_ranks_)));
    lowest = *std::min_element(lowest_of_ranks_.begin(), lowest_of_ranks_.end());
  }
  const auto number = static_cast<std::uint32_t>(step);
  if (lowest == tensors) return {-1, -1, number};
  const bool mine = shared.tensors[static_cast<std::size_t>(lowest)].own_finite;
  const std::vector<double> finite = shared.transport.all_gather(mine ? 1.0 : 0.0);
  const auto culprit = std::find(finite.begin(), finite.end(), 0.0);
  return {lowest, culprit == finite.end() ? -1 : static_cast<int>(culprit - finite.begin()), number};
}

ExchangeState Exchange::Impl::state() const {
  require(!open_, "state() while a step is open");
  ExchangeState state;
  for (std::size_t t = 0; t < shared.tensors.size(); ++t) {
    state.round1.push_back(coder_->residual(t, 1));
    state.round2.push_back(coder_->residual(t, 2));
  }
  return state;
}

void Exchange::Impl::set_state(const ExchangeState& state) {
  require(!open_, "set_state() while a step is open");
  const std::size_t tensors = shared.tensors.size();
  if (state.round1.size() != tensors || state.round2.size() != tensors)
    throw Error(fmt::format("residuals of {} and {} tensors where the network has {}", state.round1.size(),
                            state.round2.size(), tensors));
  for (std::size_t t = 0; t < tensors; ++t) {
    const ExchangeTensor& tensor = shared.tensors[t];
    for (const auto& [given, kept, round] : {std::tuple{&state.round1[t], tensor.residual1, 1},
                                             std::tuple{&state.round2[t], tensor.residual2, 2}})
      if (given->size() != kept)
        throw Error(fmt::format("residual of tensor {}, round {}, rank {}: {} values, expected {}",
                                tensor.info.name, round, shared.transport.rank(), given->size(), kept));
  }
  for (std::size_t t = 0; t < tensors; ++t) {
    coder_->set_residual(t, 1, state.round1[t]);
    coder_->set_residual(t, 2, state.round2[t]);
  }
}

Exchange::Exchange(Transport& transport, std::vector<TensorInfo> tensors,
                   const std::vector<CodecSpec>& codecs, std::span<float> gradients,
                   std::vector<std::size_t> order, const ExchangeOptions& options)
    : impl_(std::make_unique<Impl>(transport, std::move(tensors), codecs, gradients, std::move(order),
                                   options)) {}
Exchange::~Exchange() = default;

void Exchange::begin(std::uint32_t step) {
  impl_->begin(step);
}
void Exchange::submit(std::size_t tensor) {
  impl_->submit(tensor);
}
std::vector<std::size_t> Exchange::milestones() const {
  return impl_->milestones();
}
bool Exchange::can_capture() const {
  return impl_->can_capture();
}
void Exchange::launched() {
  impl_->launched();
}
void Exchange::finish() {
  impl_->finish();
}
NonFinite Exchange::check_finite(bool before) {
  return impl_->check_finite(before);
}
ExchangeStats Exchange::take_stats() {
  return impl_->take_stats();
}
void Exchange::take_errors(std::span<CodingError> sums) {
  impl_->take_errors(sums);
}
ExchangeState Exchange::state() const {
  return impl_->state();
}
void Exchange::set_state(const ExchangeState& state) {
  impl_->set_state(state);
}

}  // namespace lpsgd
