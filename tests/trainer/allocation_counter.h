// Counts this process's heap allocations that lpsgd's own code makes, by standing in for malloc and its kin
// (the program that links it calls these; so do the shared libraries).
//
// An allocation belongs to the innermost caller outside the C and C++ libraries, fmt and spdlog: to lpsgd
// where that is this program, to a third party (oneDNN, OpenMP, MPI, ...) where it is another library. So
// growing a vector, formatting a text or throwing counts, and what oneDNN keeps for itself while it runs does
// not.
#pragma once

#include <cstddef>
#include <string>

namespace lpsgd::allocation_counter {

/// Counting begins anew with start(). All threads count, from any thread.
void start();
void stop();

struct Counts {
  std::size_t own = 0, others = 0;
};
Counts counts();
/// Where the first of lpsgd's own were made: a line a call stack, for addr2line.
std::string own_stacks();

}  // namespace lpsgd::allocation_counter
