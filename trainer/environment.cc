#include "trainer/environment.h"

#include <dnnl.h>
#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <mpi.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "comm/nccl_transport.h"
#include "core/device.h"
#include "core/file.h"
#include "core/json.h"
#include "lpsgd_build.h"
#include "nn/cuda/backend.h"
#include "trainer/json_text.h"
#include "trainer/mpirun.h"
#include "trainer/run_folder.h"

namespace lpsgd {

namespace {

using nlohmann::ordered_json;

std::string onednn_version() {
  const dnnl_version_t* v = dnnl_version();
  return fmt::format("{}.{}.{}", v->major, v->minor, v->patch);
}

/// Libraries and driver of the GPUs, and which GPUs there are.
void add_cuda(ordered_json& o) {
  const CudaDevices& found = cuda_devices();
  const auto known = [](const std::string& text) {
    return text.empty() ? ordered_json(nullptr) : ordered_json(text);
  };
  o["cudnn_version"] = known(cudnn_version());
  o["cublas_version"] = known(cublas_version());
  o["is_cuda_available"] = found.count > 0;
  if (found.count == 0) o["cuda_unavailable_because"] = found.reason;
  if (found.driver_version == 0) return;
  o["nvidia_driver_version"] = cuda_driver_text();
  o["nvidia_driver_cuda_version"] =
      fmt::format("{}.{}", found.driver_version / 1000, found.driver_version % 1000 / 10);
  ordered_json& models = o["nvidia_gpu_models"] = ordered_json::array();
  for (int i = 0; i < found.count; ++i) models.push_back(cuda_device_info(i).name);
}

}  // namespace

std::string value_in_file(const char* path, const std::string& key, char separator) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    std::string value = line.substr(line.find(separator) + 1);
    const auto strip = [](char c) { return c == ' ' || c == '\t' || c == '"'; };
    while (!value.empty() && strip(value.front())) value.erase(value.begin());
    while (!value.empty() && strip(value.back())) value.pop_back();
    return value;
  }
  return "unknown";
}

std::string hostname() {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  return host;
}

ordered_json build_and_libraries() {
  ordered_json o;
  o["lpsgd_version"] = build::version;
  o["git_hash"] = revision();
  o["build_type"] = build::type;
  o["is_debug_build"] = std::string(build::type) == "Debug";
  o["gcc_version"] = build::compiler;
  o["cmake_version"] = build::cmake;
  o["compile_flags"] = build::flags;
  o["backends"] = ordered_json::array({"cpu"});
  if (cuda_devices().runtime_version > 0) o["backends"].push_back("cuda");
  o["cuda_compiled_version"] = build::cuda[0] ? ordered_json(build::cuda) : ordered_json(nullptr);
  o["cuda_architectures"] =
      build::cuda_architectures[0] ? ordered_json(build::cuda_architectures) : ordered_json(nullptr);
  add_cuda(o);
  o["nccl_version"] = nccl_missing().empty() ? ordered_json(nccl_version()) : ordered_json(nullptr);
  o["onednn_version"] = onednn_version();
  o["mpi_version"] = mpi_version();
  o["mpirun"] = mpirun();
  o["libc_version"] = fmt::format("glibc-{}", gnu_get_libc_version());
  return o;
}

std::string revision() {
  return fmt::format("{}", build::git_hash);
}

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::string name(text, static_cast<std::size_t>(length));
  name = name.substr(0, name.find_first_of(",\n"));
  std::replace(name.begin(), name.end(), '\t', ' ');
  return name;
}

std::string environment_json(Transport& transport, const std::string& name, Device device,
                             const std::vector<std::string>& classes,
                             const std::vector<std::string>& algorithms,
                             const std::vector<std::string>& command_line) {
  const std::vector<std::string> hosts = transport.all_gather_text(hostname());
  utsname system{};
  ::uname(&system);
  ordered_json o = build_and_libraries();
  o["os"] = value_in_file("/etc/os-release", "PRETTY_NAME", '=');
  o["kernel"] = fmt::format("{} {} {}", system.sysname, system.release, system.machine);
  o["cpu_info"] = value_in_file("/proc/cpuinfo", "model name", ':');
  o["cpu_cores"] = usable_cores();
  o["devices"] = transport.all_gather_text(
      device.is_cuda() ? fmt::format("{} ({})", device.text(), cuda_device_info(device.index).name)
                       : device.text());
  if (!algorithms.empty()) o["algorithms"] = algorithms;
  o["transport"] = transport.name();
  o["ranks"] = transport.size();
  o["hosts"] = hosts;
  o["name"] = name;
  o["command"] = command_line;
  char time[64];
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%SZ", &utc);
  o["started"] = time;
  if (!classes.empty()) o["classes"] = classes;
  return json_text(o, 2) + "\n";
}

ordered_json read_environment(const std::string& path) {
  constexpr std::uint64_t most_bytes = 64 << 20;
  constexpr JsonBounds bounds{.values = most_bytes / 16};
  return parse_json(read_file(path, most_bytes), path, bounds);
}

std::string version_json() {
  return json_text(build_and_libraries(), 2);
}

std::string version_text() {
  const ordered_json o = build_and_libraries();
  std::string out = fmt::format("lpsgd {} ({}, {})\n", build::version, revision(), build::type);
  for (const auto& [key, value] : o.items()) {
    if (key == "lpsgd_version" || key == "git_hash" || key == "build_type") continue;
    out += fmt::format("  {:<22} {}\n", key, value.is_string() ? value.get<std::string>() : json_text(value));
  }
  return out;
}

}  // namespace lpsgd
