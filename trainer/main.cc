// The program: runs the command line and turns an exception into one message and an exit status.
#include <cstdio>
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

int main(int argc, char** argv) {
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
