// Monotonic time, in seconds.
#pragma once

#include <chrono>

namespace lpsgd {

inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace lpsgd
