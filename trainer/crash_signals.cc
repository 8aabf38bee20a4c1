#include "trainer/crash_signals.h"

#include <dlfcn.h>

#include <csignal>
#include <cstdlib>
#include <string_view>

namespace lpsgd {

namespace {

bool is_handled_by_ucx(int number) {
  struct sigaction action {};
  if (sigaction(number, nullptr, &action) != 0 || !(action.sa_flags & SA_SIGINFO)) return false;
  Dl_info found{};
  return dladdr(reinterpret_cast<void*>(action.sa_sigaction), &found) != 0 && found.dli_fname != nullptr &&
         std::string_view(found.dli_fname).find("libucs.so") != std::string_view::npos;
}

}  // namespace

void end_at_crashes() {
  // Open MPI's handlers print the stack, for which they take locks that the crashed thread may hold.
  ::setenv("OMPI_MCA_opal_signal", "", 0);
  if (std::getenv("UCX_HANDLE_ERRORS") != nullptr) return;
  bool is_loaded = false;
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT})
    if (is_handled_by_ucx(number)) {
      is_loaded = true;
      std::signal(number, SIG_DFL);
    }
  // For a UCX that MPI loads later, as Open MPI does. One that is loaded already would warn of a variable
  // that it does not use.
  if (!is_loaded) ::setenv("UCX_HANDLE_ERRORS", "none", 0);
}

}  // namespace lpsgd
