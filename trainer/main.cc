// The program: runs the command line and turns an exception into one message and an exit status.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <new>

#include "core/error.h"
#include "core/log.h"
#include "core/printable.h"
#include "trainer/command_line.h"
#include "trainer/crash_signals.h"

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

int main(int argc, char** argv) {
  wait_without_spinning(argv);
  lpsgd::end_at_crashes();
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
