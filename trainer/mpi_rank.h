// One rank of a command under mpirun.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/agree.h"
#include "comm/transport.h"

namespace lpsgd {

/// Runs `body` and returns its exit status, if all ranks have the same `facts`. An exception becomes one
/// message: rank 0 prints an error that all ranks share (SharedError); any other error names its rank and
/// ends the job. If the launcher belongs to another MPI library, `body` is not run and the status is 2; the
/// launcher's rank 0 prints which one to use.
int run_mpi_rank(std::unique_ptr<Transport> transport, const std::vector<Fact>& facts,
                 const std::function<int(Transport&)>& body);

/// For commands that do not use the ranks, before they start: if a launcher has started several processes,
/// all must run this command. Otherwise rank 0 prints why not, and the status is 2. `mistake`: what is wrong
/// with this rank's command line; empty: nothing.
int meet_other_ranks(const std::string& command, const std::string& mistake);

}  // namespace lpsgd
