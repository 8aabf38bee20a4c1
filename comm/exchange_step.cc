// The units of a step. Over an ordered transport the caller's thread queues them; otherwise the communication
// thread advances them.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>

#include "comm/backoff.h"
#include "comm/coder.h"
#include "comm/exchange.h"
#include "comm/exchange_unit.h"
#include "core/clock.h"
#include "core/error.h"

namespace lpsgd {

void Exchange::queue_units(std::size_t end) {
  if (next_ >= end) return;
  const auto queueing = [&](std::optional<UnitOfStep> unit) {
    const std::lock_guard lock(mutex_);
    queueing_ = unit;
  };
  if (next_ == part_.first_unit) {
    shared_->bytes_sent = shared_->bytes_between = 0;
    step_bytes_ = shared_->transport.bytes_sent();
    step_messages_ = shared_->transport.messages_sent();
  }
  try {
    for (; next_ < end; ++next_) {
      queueing(UnitOfStep{shared_->step, std::min(next_, plan_.size() - 1)});
      queue_unit(next_);
    }
    queueing({});
  } catch (...) {
    shared_->transport.cancel();
    const std::lock_guard lock(mutex_);
    queueing_.reset();
    failure_ = std::current_exception();
    open_ = false;
    throw;
  }
}

int Exchange::queued_at_once() const {
  return shared_->blocks.size > 1 ? 5 : 3;
}

// The order of messages is the same on all ranks and keeps the network busy: during round 1 of a unit, the
// previous unit is reduced and the one before that is decoded. With blocks there are two stages more: the
// shares of a block come before round 1, and means are handed on after round 2. Further calls after the last
// unit finish the last ones.
void Exchange::queue_unit(std::size_t unit) {
  const std::size_t first = part_.first_unit, last = part_.last_unit;
  if (unit < last) {
    slot(unit).start({&plan_[unit], unit});
    while (!slot(unit).under_way()) slot(unit).advance();
  }
  const auto stages = static_cast<std::size_t>(queued_at_once());
  for (std::size_t stage = 1; stage < stages; ++stage) {
    if (unit < first + stage || unit - stage >= last) continue;
    UnitInFlight& earlier = slot(unit - stage);
    earlier.advance();
    if (stage + 1 < stages) continue;
    while (!earlier.done()) earlier.advance();
    earlier.finish();
  }
}

// The caller's thread never waits within a step, so only this thread can notice that a rank hangs.
void Exchange::watch() {
  const ScopedDevice current(options_.device);
  Patience patience(shared_->transport.collectives().limits.step);
  const std::chrono::duration<double> pause(patience.period() / 60);
  std::optional<UnitOfStep> last;
  for (std::unique_lock lock(mutex_); !wake_.wait_for(lock, pause, [&] { return stop_.load(); });) {
    std::optional<UnitOfStep> at = queueing_;
    lock.unlock();
    try {
      if (!at) at = coder_->unfinished();
    } catch (const DeviceError&) {  // of queued work: it reaches the caller, who can handle it
      return;
    }
    if (!at || at != last) {
      patience.reset();
    } else if (patience.due()) {
      try {
        patience.report(shared_->transport, waiting_text(*at, patience.waited(), "other ranks"));
      } catch (const CommError&) {  // the transport has it for the caller
        return;
      }
    }
    last = at;
    lock.lock();
  }
}

std::string Exchange::waiting_text(UnitOfStep at, double seconds, const std::string& ranks) const {
  const std::string& tensor = shared_->tensors[plan_[at.unit].segments.front().tensor].info.name;
  return fmt::format("step {}: the exchange of {} has waited {:.0f} s for {}", at.step, tensor, seconds,
                     ranks);
}

void Exchange::serve() {
  prefer_short_sleeps();
  const ScopedDevice current(options_.device);  // MPI may ask which one a message's memory belongs to
  for (std::unique_lock lock(mutex_);;) {
    wake_.wait(lock, [&] { return stop_ || working_; });
    if (stop_) return;
    lock.unlock();
    std::exception_ptr failure;
    try {
      const double busy = poll_units();
      if (!stop_) coder_->end_step(busy);
    } catch (...) {
      shared_->transport.cancel();
      failure = std::current_exception();
    }
    lock.lock();
    failure_ = failure;
    working_ = false;
    finished_.notify_all();
  }
}

double Exchange::poll_units() {
  const std::size_t slots = in_flight_.size();
  const std::size_t last = part_.last_unit;
  std::size_t oldest = part_.first_unit, next = oldest;  // units [oldest, next) are in flight
  double busy = 0, busy_since = 0;
  Patience patience(shared_->transport.collectives().limits.step);
  Backoff backoff;
  shared_->bytes_sent = shared_->bytes_between = 0;
  while (oldest < last) {
    if (stop_) {
      if (oldest < next) shared_->transport.cancel();
      return 0;
    }
    if (oldest == next) {
      if (busy_since > 0) busy += now_seconds() - busy_since;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || available_.load() >= plan_[next].ready_after; });
      }
      if (stop_) continue;
      busy_since = now_seconds();
    }
    bool moved = false;
    for (; next < last && next < oldest + slots &&
           available_.load(std::memory_order_acquire) >= plan_[next].ready_after && slot(next).free();
         ++next, moved = true)
      slot(next).start({&plan_[next], next});
    bool advanced = false;
    for (std::size_t u = oldest; u < next && !advanced; ++u) advanced = slot(u).advance();
    moved |= advanced;
    for (; oldest < next && slot(oldest).done(); ++oldest, moved = true) slot(oldest).finish();
    if (moved) {
      backoff.reset();
      patience.reset();
      continue;
    }
    backoff.pause();
    if (patience.due())
      patience.report(shared_->transport,
                      waiting_text({shared_->step, oldest}, patience.waited(), slot(oldest).waiting_for()));
  }
  return busy_since > 0 ? busy + (now_seconds() - busy_since) : busy;
}

}  // namespace lpsgd
