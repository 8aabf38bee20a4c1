// One rank of a command under mpirun.
#pragma once

#include <functional>
#include <memory>

#include "comm/transport.h"

namespace lpsgd {

/// Runs `body` and returns its exit status. What it throws becomes one message: an error that all ranks share
/// (SharedError) is told by rank 0; any other names the rank, and ends the job. Where the launcher belongs to
/// another MPI library, `body` is not run and the status is 2; the launcher's rank 0 says which one to use.
int run_mpi_rank(std::unique_ptr<Transport> transport, const std::function<int(Transport&)>& body);

}  // namespace lpsgd
