#include "trainer/stop_signals.h"

#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace lpsgd {

namespace {

constexpr int handled[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};
constexpr std::int64_t same_within = 1'000'000'000;  // nanoseconds

std::atomic<bool> catching{false};
std::atomic<int> caught{0};
std::atomic<std::int64_t> caught_at{0};
static_assert(std::atomic<std::int64_t>::is_always_lock_free, "signal handlers may not wait for a lock");

bool starts_without_hangup = false;  // as under nohup

/// UCX, which MPICH uses, takes SIGHUP when it is loaded. What it was is noted before that, by the kernel's
/// own call: nothing else has been initialised.
__attribute__((no_sanitize("address", "undefined", "thread"))) void note_hangup(int, char**, char**) {
  struct {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)();
    unsigned long mask;
  } before{};
  ::syscall(SYS_rt_sigaction, SIGHUP, nullptr, &before, sizeof before.mask);
  starts_without_hangup = before.handler == SIG_IGN;
}
__attribute__((section(".preinit_array"), used)) void (*const before_libraries)(int, char**,
                                                                                char**) = note_hangup;

std::int64_t nanoseconds() {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

void handle(int signal) {
  const int error = errno;
  const std::int64_t now = nanoseconds();
  int none = 0;
  if (catching && caught.compare_exchange_strong(none, signal)) {
    caught_at = now;
  } else if (!catching || (caught_at != 0 && now - caught_at >= same_within)) {
    ::signal(signal, SIG_DFL);
    ::raise(signal);  // arrives when this function returns
  }
  errno = error;
}

}  // namespace

void restore_hangup() {
  ::signal(SIGHUP, starts_without_hangup ? SIG_IGN : SIG_DFL);
}

void install_signal_handlers() {
  restore_hangup();  // Open MPI loads UCX in MPI_Init
  for (const int signal : handled) {
    struct sigaction before {
    }, action{};
    ::sigaction(signal, nullptr, &before);
    if (before.sa_handler == SIG_IGN) continue;
    action.sa_handler = handle;
    action.sa_flags = SA_RESTART;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(signal, &action, nullptr);
  }
}

void catch_signals() {
  catching = true;
}

int caught_signal() {
  return caught;
}

void forget_caught_signal() {
  caught_at = 0;
  caught = 0;
}

const char* signal_name(int signal) {
  switch (signal) {
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "SIGINT";
    case SIGHUP:
      return "SIGHUP";
    case SIGUSR1:
      return "SIGUSR1";
    default:
      return "a signal";
  }
}

}  // namespace lpsgd
