// One rank of a command under mpirun.
#pragma once

#include <functional>
#include <memory>

#include "comm/transport.h"

namespace lpsgd {

/// Runs `body` and returns its exit status. An exception becomes one message: rank 0 prints an error that all
/// ranks share (SharedError); any other error names its rank and ends the job. If the launcher belongs to
/// another MPI library, `body` is not run and the status is 2; the launcher's rank 0 prints which one to use.
int run_mpi_rank(std::unique_ptr<Transport> transport, const std::function<int(Transport&)>& body);

}  // namespace lpsgd
