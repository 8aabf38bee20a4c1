// Monotonic time and processor time, in seconds.
#pragma once

#include <chrono>
#include <ctime>

namespace lpsgd {

inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Processor time of all threads of this process, or of the calling thread.
enum class CpuTime : clockid_t { process = CLOCK_PROCESS_CPUTIME_ID, thread = CLOCK_THREAD_CPUTIME_ID };

inline double cpu_seconds(CpuTime of) {
  std::timespec time{};
  ::clock_gettime(static_cast<clockid_t>(of), &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace lpsgd
