// What the process does when it crashes.
#pragma once

namespace lpsgd {

/// Crashes end the process at once. UCX, which MPI libraries load, would handle the signal: it prints a
/// backtrace, and for that it allocates memory, which never returns if the crash was inside malloc. The job
/// then hangs. Called before MPI starts. If UCX_HANDLE_ERRORS is set, UCX does what that says.
void end_at_crashes();

}  // namespace lpsgd
