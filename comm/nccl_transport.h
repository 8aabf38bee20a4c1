// The transport over NCCL: what a step sends goes from GPU to GPU, on a stream; everything else goes over
// another transport (MPI), which also makes the ranks known to each other.
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
/// all ranks where two of them share a GPU of one host (NCCL_HOSTID, different on each rank, makes NCCL take
/// them for hosts of their own), or where this build or machine has no NCCL; SharedError (comm/agree.h) where
/// one cannot set itself up; CommError where NCCL cannot connect them. An error of NCCL later on ends its
/// work in flight and is thrown by the next call.
std::unique_ptr<Transport> make_nccl_transport(Transport& inner, Device device);

}  // namespace lpsgd
