// The checks of `lpsgd doctor`. Each function makes those of one thing, and is called by run_step().
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "comm/transport.h"
#include "trainer/doctor/check.h"

namespace lpsgd::doctor {

Checks build_check();
Checks instructions_check();

Checks library_check();
/// Of the `mpirun` in PATH: whether it belongs to the MPI library.
Checks launcher_check();
/// Open MPI's launcher does not start as root unless it is told to.
Checks root_check();
/// Starts two ranks of this program, and takes over what they found.
Checks two_ranks_checks();

Checks driver_check();
/// One check for each GPU, or none.
Checks device_checks();
Checks gpu_libraries_check();

Checks cores_check();
Checks memory_check();
Checks shared_memory_check();
Checks open_files_check();
Checks locked_memory_check();

Checks runs_check();
Checks cache_check();
Checks data_check();

Checks interpreter_check();

/// Where the ranks run and what each would use. Collective; the checks are on rank 0.
Checks rank_checks(Transport& ranks);
/// Messages between rank 0 and others, and sums over all ranks. Collective, as above.
Checks exchange_checks(Transport& ranks);

// Parts that tests call.

/// Whether a program compiled for `architectures` (CMAKE_CUDA_ARCHITECTURES) holds code for this compute
/// capability. True if the words do not tell.
bool has_code(std::string_view architectures, int major, int minor);
/// "MPICH", "Open MPI" or "": whose launcher prints this, or which library calls itself so. MPICH's launcher
/// also is that of the libraries that were made from MPICH.
std::string mpi_family(std::string_view text);

/// What a rank would use.
struct RankPlace {
  std::string host;
  std::string device;         // "cpu", "cuda:0"
  std::string bus;            // of a GPU
  int gpus = 0, threads = 1;  // on its machine; of its own
  std::vector<int> cores;     // that it may run on
  int machine_cores = 1;      // that a process may run on there
};
Checks place_checks(const std::vector<RankPlace>& ranks, bool mpi_takes_device_memory, bool binds);

}  // namespace lpsgd::doctor
