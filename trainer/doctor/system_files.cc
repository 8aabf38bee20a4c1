#include "trainer/doctor/system_files.h"

#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <vector>

#include "trainer/environment.h"

namespace lpsgd::doctor {

namespace {

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

std::optional<double> number(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end != text.data() ? std::optional(value) : std::nullopt;
}

/// This process's group and those around it, the innermost first. `controller`: of version 1; version 2 has
/// one tree. Inside a container the path may be that of the host, so the root of the mount counts as well.
std::vector<std::string> groups(const std::string& controller) {
  std::ifstream in("/proc/self/cgroup");
  std::vector<std::string> out;
  for (std::string line; std::getline(in, line);) {
    const std::size_t colon = line.find(':'), second = line.find(':', colon + 1);
    if (second == std::string::npos) continue;
    const std::string names = fmt::format(",{},", line.substr(colon + 1, second - colon - 1));
    const bool is_unified = names == ",,";
    if (!is_unified && names.find(fmt::format(",{},", controller)) == std::string::npos) continue;
    const std::string root = is_unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/" + controller;
    std::string path = line.substr(second + 1);
    for (; path.size() > 1; path.resize(path.rfind('/'))) out.push_back(root + path);
    out.push_back(root);
  }
  return out;
}

}  // namespace

double kib_in_file(const char* path, const std::string& key) {
  return number(value_in_file(path, key, ':')).value_or(0) * 1024;
}

std::optional<Space> space_of(const std::string& folder) {
  struct statvfs files {};
  if (::statvfs(folder.c_str(), &files) != 0) return std::nullopt;
  const auto block = static_cast<double>(files.f_frsize);
  return Space{static_cast<double>(files.f_blocks) * block, static_cast<double>(files.f_bavail) * block};
}

std::optional<double> cgroup_cores() {
  std::optional<double> least;
  for (const std::string& group : groups("cpu")) {
    std::string quota, period;
    if (std::istringstream both(first_line(group + "/cpu.max")); !(both >> quota >> period)) {
      quota = first_line(group + "/cpu.cfs_quota_us");
      period = first_line(group + "/cpu.cfs_period_us");
    }
    const std::optional<double> part = number(quota), whole = number(period);  // "max": no limit
    if (part && whole && *part > 0 && *whole > 0)
      least = std::min(least.value_or(*part / *whole), *part / *whole);
  }
  return least;
}

std::optional<CgroupMemory> cgroup_memory() {
  std::optional<CgroupMemory> least;
  for (const std::string& group : groups("memory")) {
    std::optional<double> limit = number(first_line(group + "/memory.max"));
    std::optional<double> used = number(first_line(group + "/memory.current"));
    if (!limit) limit = number(first_line(group + "/memory.limit_in_bytes"));
    if (!used) used = number(first_line(group + "/memory.usage_in_bytes"));
    constexpr double no_limit = 1e18;  // version 1 says 2^63 or so
    if (limit && *limit < no_limit && (!least || *limit < least->limit))
      least = CgroupMemory{*limit, used.value_or(0)};
  }
  return least;
}

int machine_cores() {
  for (const std::string& group : groups("cpuset"))
    for (const char* file : {"/cpuset.cpus.effective", "/cpuset.effective_cpus"})
      if (const int n = count_of_list(first_line(group + file)); n > 0) return n;
  return static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
}

int count_of_list(const std::string& text) {
  int count = 0;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const std::size_t dash = part.find('-');
    const std::optional<double> first = number(part),
                                last = dash == std::string::npos ? first : number(part.substr(dash + 1));
    if (!first || !last || *last < *first) return 0;
    count += static_cast<int>(*last - *first) + 1;
  }
  return count;
}

}  // namespace lpsgd::doctor
