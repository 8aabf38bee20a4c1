// The transport over NCCL. The messages of a step go from GPU to GPU, on a stream. Everything else goes over
// another transport (MPI), through which the ranks also find each other.
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
/// all ranks where two of them share a GPU of one host (with another NCCL_HOSTID on each rank NCCL takes them
/// for hosts of their own), or where this build or machine has no NCCL; SharedError (comm/agree.h) where a
/// rank cannot make its stream; CommError where NCCL cannot connect them. A later error of NCCL ends its work
/// in flight, and the next call throws it.
std::unique_ptr<Transport> make_nccl_transport(Transport& inner, Device device);

}  // namespace lpsgd
