// For test programs declared with lpsgd_mpi_test.
#pragma once

#include "comm/transport.h"

namespace lpsgd {

/// The transport over all ranks of this run; alive while the cases run.
Transport& world();

}  // namespace lpsgd
