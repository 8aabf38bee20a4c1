#include "comm/backoff.h"

#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>

#include "core/clock.h"

namespace lpsgd {

void Backoff::pause() {
  constexpr double compute_slice = 500e-6;  // a thread that keeps the core for this long computes
  constexpr double remembered = 1;
  constexpr long max_sleep = 200'000;
  const double now = now_seconds();
  if (yields_ > 0 && now > shared_until_) {
    --yields_;
    sched_yield();
    if (const double after = now_seconds(); after - now > compute_slice) shared_until_ = after + remembered;
    return;
  }
  timespec duration{0, nanoseconds_};
  nanosleep(&duration, nullptr);
  nanoseconds_ = std::min(2 * nanoseconds_, max_sleep);
}

void prefer_short_sleeps() {
  prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
}

}  // namespace lpsgd
