// SIGTERM, SIGINT, SIGHUP and SIGUSR1 end a run in order: training finishes its step, saves and ends.
#pragma once

namespace lpsgd {

/// Gives SIGHUP back what the process was started with: UCX takes it as soon as it is loaded.
void restore_hangup();

/// Handles the four signals, except those that the process was started to ignore. Until catch_signals() they
/// end the process at once. Call it after MPI_Init: MPICH has a handler of its own for SIGUSR1, with which a
/// process without mpirun hangs.
void install_signal_handlers();

/// From now on the first signal is only noted. Another one, a second or more later, ends the process at once;
/// within that second it counts as the same one, which a launcher and a terminal may both send.
void catch_signals();

/// The signal that was noted; 0: none.
int caught_signal();

/// As if no signal had been caught, for tests.
void forget_caught_signal();

/// "SIGTERM".
const char* signal_name(int signal);

}  // namespace lpsgd
