// The machine: cores, memory, and limits of the system that training meets.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "core/device.h"
#include "trainer/doctor/checks.h"
#include "trainer/doctor/system_files.h"
#include "trainer/environment.h"
#include "trainer/run_folder.h"

namespace lpsgd::doctor {

namespace {

bool has_infiniband() {
  std::error_code error;
  return !std::filesystem::is_empty("/sys/class/infiniband", error) && !error;
}

std::string limit_text(rlim_t limit, bool is_bytes) {
  if (limit == RLIM_INFINITY) return "unlimited";
  return is_bytes ? bytes_text(static_cast<double>(limit)) : std::to_string(limit);
}

nlohmann::ordered_json limit_value(rlim_t limit) {
  return limit == RLIM_INFINITY ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(limit);
}

}  // namespace

Checks cores_check() {
  const int usable = usable_cores();
  const long machine = std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN));
  const std::optional<double> quota = cgroup_cores();
  Check check{
      "machine.cores", Status::ok,
      fmt::format("{} of {} usable, {}", usable, machine, value_in_file("/proc/cpuinfo", "model name", ':'))};
  check.values = {{"usable", usable}, {"machine", machine}};
  if (quota) check.values["quota"] = *quota;
  if (quota && *quota < usable - 0.01) {
    check.status = Status::warning;
    check.found += fmt::format("; a quota of the control group is {:.1f} cores", *quota);
    check.advice = fmt::format(
        "raise the quota (docker: --cpus), or set train.threads so that all ranks' threads "
        "together are {:.0f}",
        std::max(1.0, *quota));
  }
  return {check};
}

Checks memory_check() {
  const double total = kib_in_file("/proc/meminfo", "MemTotal"),
               free = kib_in_file("/proc/meminfo", "MemAvailable");
  Check check{"machine.memory", Status::ok,
              fmt::format("{} of {} available", bytes_text(free), bytes_text(total))};
  check.values = {{"total_bytes", total}, {"available_bytes", free}};
  double most = free;
  if (const std::optional<CgroupMemory> group = cgroup_memory(); group && group->limit < total) {
    check.found += fmt::format("; the control group may use {} and uses {}", bytes_text(group->limit),
                               bytes_text(group->used));
    check.values["limit_bytes"] = group->limit;
    most = std::min(most, std::max(0.0, group->limit - group->used));
  }
  if (most < gib) {
    check.status = Status::warning;
    check.advice = "free memory, or ask for more: lpsgd show CONFIG says what a network takes";
  }
  return {check};
}

Checks shared_memory_check() {
  Check check{"machine.shm"};
  const std::optional<Space> space = space_of("/dev/shm");
  if (!space) {
    check.status = Status::warning;
    check.found = "there is no /dev/shm";
    check.advice = "mount a tmpfs there: MPI and NCCL exchange through it on one machine";
    return {check};
  }
  check.found = fmt::format("/dev/shm: {} of {} free", bytes_text(space->free), bytes_text(space->total));
  check.values = {{"total_bytes", space->total}, {"free_bytes", space->free}};
  if (space->free <= 64 * mib) {  // Docker's default
    check.status = Status::warning;
    check.advice =
        "MPI and NCCL exchange through it: remove what other programs have left there, or make it "
        "larger (docker: --shm-size=1g or --ipc=host)";
  }
  return {check};
}

Checks open_files_check() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  Check check{"machine.open_files", Status::ok,
              fmt::format("at most {} in a process", limit_text(limit.rlim_cur, false))};
  check.values = {{"limit", limit_value(limit.rlim_cur)}};
  if (limit.rlim_cur < 1024) {
    check.status = Status::warning;
    check.advice = "ulimit -n 1024 or more: ranks have a connection to each other rank";
  }
  return {check};
}

Checks locked_memory_check() {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  Check check{"machine.memlock", Status::absent, "no InfiniBand, which alone needs memory that is locked"};
  if (!has_infiniband()) return {check};
  check.status = Status::ok;
  check.found = fmt::format("InfiniBand; memory that may be locked: {}", limit_text(limit.rlim_cur, true));
  check.values = {{"limit_bytes", limit_value(limit.rlim_cur)}};
  if (limit.rlim_cur != RLIM_INFINITY && static_cast<double>(limit.rlim_cur) < gib) {
    check.status = Status::warning;
    check.advice =
        "ulimit -l unlimited (in /etc/security/limits.conf, or the launcher's daemon): InfiniBand locks "
        "the memory that it sends from";
  }
  return {check};
}

}  // namespace lpsgd::doctor
