#include "comm/backoff.h"

#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>

#include "core/clock.h"

namespace lpsgd {

void Backoff::pause() {
  constexpr double computing = 500e-6;  // whoever takes the core for so long is not just waiting, too
  constexpr double memory = 1;
  constexpr long longest = 200'000;
  const double now = now_seconds();
  if (yields_ > 0 && now > crowded_until_) {
    --yields_;
    sched_yield();
    if (const double after = now_seconds(); after - now > computing) crowded_until_ = after + memory;
    return;
  }
  timespec duration{0, nanoseconds_};
  nanosleep(&duration, nullptr);
  nanoseconds_ = std::min(2 * nanoseconds_, longest);
}

void prefer_short_sleeps() {
  prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
}

}  // namespace lpsgd
