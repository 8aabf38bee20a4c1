// What files of Linux say: /proc, and the limits of control groups (cgroups).
#pragma once

#include <optional>
#include <string>

namespace lpsgd::doctor {

/// Bytes of the line `KEY:   N kB`; 0 if there is none.
double kib_in_file(const char* path, const std::string& key);

struct Space {
  double total, free;  // bytes
};
/// Of the disk, or the memory, that a folder lies on; nothing if the system does not tell.
std::optional<Space> space_of(const std::string& folder);

/// Processor cores that the quota of this process's control groups allows; nothing without a quota.
std::optional<double> cgroup_cores();

struct CgroupMemory {
  double limit, used;  // bytes
};
/// Of the control group with the lowest limit; nothing without a limit.
std::optional<CgroupMemory> cgroup_memory();

/// Cores that a process may use on this machine if nothing binds it: those of its control group.
int machine_cores();

/// "0-3,8" is 5; 0 if the text is no such list.
int count_of_list(const std::string& text);

}  // namespace lpsgd::doctor
