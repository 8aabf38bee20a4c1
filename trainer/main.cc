// The program: runs the command line and turns an exception into one message and an exit status.
#include <fcntl.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "core/error.h"
#include "core/log.h"
#include "core/printable.h"
#include "trainer/command_line.h"
#include "trainer/crash_signals.h"
#include "trainer/stop_signals.h"

namespace {

int fail(const char* message, int status) {
  std::fflush(stdout);
  std::fprintf(stderr, "lpsgd: error: %s\n", lpsgd::printable_lines(message).c_str());
  return status;
}

}  // namespace

/// A thread of OpenMP that waits for the others of its rank must not keep a core from them, as it would for
/// milliseconds where several jobs share cores (docs/operations.md). Its library reads the variable when it
/// is loaded, so the program starts once more.
void wait_without_spinning(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  char path[4096];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path - 1);
  if (length < 0 || ::setenv("GOMP_SPINCOUNT", "100", 0) != 0) return;
  path[length] = 0;
  ::execv(path, argv);
}  // if that fails, this process goes on

/// Where jobs share cores, a thread that the others of its rank wait for shall not wait for a whole slice of
/// another job's first. A slice of 0.1 ms changes no thread's share of a core, and nothing where cores are
/// not shared. Linux before 6.12 does not know slices of one's own and ignores it, as do other policies.
void ask_for_short_slices() {
  struct {
    std::uint32_t size, policy;
    std::uint64_t flags;
    std::int32_t nice;
    std::uint32_t priority;
    std::uint64_t runtime, deadline, period;
  } attributes{};  // the kernel's struct sched_attr, which glibc does not declare
  if (::syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;
  attributes.runtime = 100'000;  // ns
  (void)::syscall(SYS_sched_setattr, 0, &attributes, 0);
}

/// Files and pipes that are opened later shall not get the numbers of standard streams that were closed at
/// the start: what is printed would be written into them.
void open_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(stream, F_GETFD) < 0) (void)::open("/dev/null", stream == STDIN_FILENO ? O_RDONLY : O_WRONLY);
}

int main(int argc, char** argv) {
  open_standard_streams();
  lpsgd::restore_hangup();
  wait_without_spinning(argv);
  ask_for_short_slices();
  lpsgd::end_at_crashes();
  std::signal(SIGXFSZ, SIG_IGN);  // beyond a limit of file sizes, writing fails as on a full disk
  try {
    lpsgd::init_logging(0, 1);  // `train` does so again, with its rank
    return lpsgd::run_command_line({argv, argv + argc});
  } catch (const lpsgd::Error& e) {
    return fail(e.what(), e.exit_status());
  } catch (const std::bad_alloc&) {
    return fail("out of memory", 1);
  } catch (const std::exception& e) {
    return fail(e.what(), 1);
  }
}
