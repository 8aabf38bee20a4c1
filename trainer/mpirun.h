#pragma once

namespace lpsgd {

/// The path of the launcher that belongs to the MPI library of this build.
const char* mpirun();

}  // namespace lpsgd
