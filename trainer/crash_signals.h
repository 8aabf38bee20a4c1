// What the process does when it crashes.
#pragma once

namespace lpsgd {

/// Crashes end the process at once. UCX, which MPI libraries load, and Open MPI would handle the signal: they
/// print a backtrace, and for that they allocate memory, which never returns if the crash was inside malloc.
/// The job then hangs. Called before MPI starts. If UCX_HANDLE_ERRORS or OMPI_MCA_opal_signal is set, that
/// library does what it says.
void end_at_crashes();

}  // namespace lpsgd
