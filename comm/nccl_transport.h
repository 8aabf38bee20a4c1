// The transport over NCCL. The messages of a step travel from GPU to GPU, on a stream. Everything else uses
// another transport (MPI), including the setup of NCCL's connections.
#pragma once

#include <memory>
#include <string>

#include "comm/transport.h"

namespace lpsgd {

/// Why this program has no NCCL; empty: it has.
std::string nccl_missing();
/// "2.28.9", of the library that is loaded; empty without.
std::string nccl_version();

/// A collective call: every rank of `inner`, which outlives the result, with its own device. DeviceError on
/// all ranks if two of them share a GPU of one host (a different NCCL_HOSTID on each rank makes them
/// different hosts to NCCL), or if this build or machine has no NCCL; SharedError (comm/agree.h) if a rank
/// cannot make its stream; CommError if NCCL cannot connect them. A later error of NCCL ends its work in
/// flight, and the next call throws it.
std::unique_ptr<Transport> make_nccl_transport(Transport& inner, Device device);

}  // namespace lpsgd
