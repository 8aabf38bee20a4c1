// GPUs: the driver, and for each device a test that it computes what the CPU computes.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "comm/nccl_transport.h"
#include "core/buffer.h"
#include "core/device.h"
#include "core/error.h"
#include "lpsgd_build.h"
#include "nn/cuda/backend.h"
#include "quant/codec.h"
#include "trainer/bench/samples.h"
#include "trainer/doctor/checks.h"
#if LPSGD_HAVE_CUDA
#include "quant/cuda/cuda_codec.h"
#endif

namespace lpsgd::doctor {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

/// Whether one of NVIDIA's GPUs is on the bus, with or without a driver.
bool has_gpu_on_bus() {
  std::error_code error;
  for (const auto& device : fs::directory_iterator("/sys/bus/pci/devices", error)) {
    std::string vendor, kind;
    std::ifstream(device.path() / "vendor") >> vendor;
    std::ifstream(device.path() / "class") >> kind;
    if (vendor == "0x10de" && kind.starts_with("0x03")) return true;  // 03: a display controller
  }
  return false;
}

std::string cuda_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

#if LPSGD_HAVE_CUDA
/// Encodes the same values on the device and on the CPU. Returns how many bytes differ.
std::size_t wrong_bytes(Device device) {
  constexpr std::size_t n = std::size_t{1} << 18;
  const CodecSpec spec =
      parse_codec(config::parse_text("{kind: qsgd, bits: 4, bucket: 512}", "doctor"), "codec");
  const std::shared_ptr<const Codec> codec = make_codec(spec, bench_tensor(n));
  Buffer<float> values(n);
  fill_like_gradients(values, 0);
  const std::size_t encoded = codec->encoded_bytes(n);
  Buffer<std::byte> expected(encoded), found(encoded);
  CodingJob job = codec->job(0, n);
  job.values = values.data();
  job.bytes = expected.data();
  const CodingContext context{1, 0, 0, 1};
  codec->encode(job, context);

  const ScopedDevice scope(device);
  const Stream stream(device);
  DeviceBuffer<float> on_device(device, n);
  DeviceBuffer<std::byte> bytes(device, encoding_room(encoded));
  copy_values(on_device.view(), values.view(), stream);
  job.values = on_device.data();
  job.bytes = bytes.data();
  CudaBatch batch(spec, device, {&job, 1});
  batch.encode(context, stream);
  copy_bytes(found.data(), bytes.data(), encoded, stream);
  stream.synchronize();
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < encoded; ++i) wrong += expected[i] != found[i];
  return wrong;
}
#else
std::size_t wrong_bytes(Device) {
  throw DeviceError("this build has no CUDA backend");
}
#endif

/// Bytes per second from page-locked memory of the host.
double copy_rate(Device device) {
  constexpr std::size_t bytes = std::size_t{32} << 20;
  const ScopedDevice scope(device);
  const Stream stream(device);
  PinnedBuffer<std::byte> host(device, bytes);
  DeviceBuffer<std::byte> there(device, bytes);
  std::vector<double> seconds;
  for (int i = 0; i < 6; ++i) {
    Event begin(device, Event::Timing::on), end(device, Event::Timing::on);
    begin.record(stream);
    copy_bytes(there.data(), host.data(), bytes, stream);
    end.record(stream);
    end.synchronize();
    if (i > 0) seconds.push_back(seconds_between(begin, end));
  }
  const double time = median(seconds);
  return time > 0 ? static_cast<double>(bytes) / time : 0;
}

void fail(Check& check, const std::string& found, const std::string& advice) {
  check.status = Status::error;
  check.found += "; " + found;
  check.advice = advice;
}

Check device_check(int index) {
  const Device device = Device::cuda(index);
  const CudaDeviceInfo info = cuda_device_info(index);
  const std::size_t free = free_device_memory(device);
  Check check{
      fmt::format("gpu.{}", index), Status::ok,
      fmt::format("{}, compute capability {}.{}, {} of {} free", info.name, info.major, info.minor,
                  bytes_text(static_cast<double>(free)), bytes_text(static_cast<double>(info.memory)))};
  const bool code = has_code(build::cuda_architectures, info.major, info.minor);
  check.values = {{"device", device.text()},
                  {"model", info.name},
                  {"compute_capability", fmt::format("{}.{}", info.major, info.minor)},
                  {"memory_bytes", info.memory},
                  {"free_bytes", free},
                  {"has_code", code}};
  if (info.major * 10 + info.minor < 75) {
    fail(check, "lpsgd needs 7.5 or more", "train.device: cpu; or use a newer GPU");
    return check;
  }
  if (!code) {
    fail(check, fmt::format("this program is compiled for {} only", build::cuda_architectures),
         fmt::format("build again: scripts/build release -DCMAKE_CUDA_ARCHITECTURES={}{}-real", info.major,
                     info.minor));
    return check;
  }
  try {
    const std::size_t wrong = wrong_bytes(device);
    check.values["computes_as_cpu"] = wrong == 0;
    if (wrong > 0) {
      fail(check, fmt::format("{} bytes of an encoding differ from the CPU's", wrong),
           "this GPU computes wrongly: look for errors in dmesg and nvidia-smi -q, and do not train on it");
      return check;
    }
    const double rate = copy_rate(device);
    check.values["bytes_per_s"] = rate;
    check.found += fmt::format(", {} from the host; encodes as the CPU does", rate_text(rate));
  } catch (const Error& e) {
    fail(check, e.what(),
         "if other programs use its memory, wait for them (nvidia-smi lists them); otherwise look for the "
         "GPU's "
         "errors in dmesg");
    return check;
  }
  constexpr std::size_t little = std::size_t{1} << 30;
  if (free > 0 && free < std::min(little, info.memory / 8)) {
    check.status = Status::warning;
    check.advice =
        "other programs use its memory (nvidia-smi lists them); end them, or take another GPU by "
        "CUDA_VISIBLE_DEVICES";
  }
  return check;
}

}  // namespace

bool has_code(std::string_view architectures, int major, int minor) {
  std::istringstream words{std::string(architectures)};
  bool tells = false;
  for (std::string word; words >> word;) {
    const std::size_t digits = std::min(word.find_first_not_of("0123456789"), word.size());
    if (digits < 2 || digits > 3) return true;  // "native", "all": whatever was there
    tells = true;
    const int number = std::stoi(word.substr(0, digits)), has_major = number / 10, has_minor = number % 10;
    const std::string kind = word.substr(digits);
    const bool is_of_one = kind.starts_with('a') || kind.starts_with('f');  // 90a: for 9.0 alone
    if (has_major == major && (is_of_one ? has_minor == minor : has_minor <= minor)) return true;
    if (!is_of_one && !kind.ends_with("-real") && has_major < major) return true;  // PTX, for all later ones
  }
  return !tells;
}

Checks driver_check() {
  const CudaDevices& found = cuda_devices();
  Check check{"gpu.driver"};
  if (found.count > 0) {
    check.found = fmt::format("driver {} for CUDA up to {}; {}", cuda_driver_text(),
                              cuda_text(found.driver_version), count_text(found.count, "device"));
    check.values = {
        {"driver", cuda_driver_text()}, {"cuda", cuda_text(found.driver_version)}, {"devices", found.count}};
    return {check};
  }
  check.values = {{"devices", 0}};
  check.found = found.reason + "; train.device: auto takes the CPU";
  const bool has_gpu = has_gpu_on_bus();
  if (found.runtime_version == 0 && has_gpu) {
    check.status = Status::warning;
    check.found = "this machine has an NVIDIA GPU, but " + check.found;
    check.advice = "to use it install CUDA's nvcc and cuDNN 9, and build again (docs/developing.md#machine)";
  } else if (found.runtime_version > 0 && found.driver_version == 0 && has_gpu) {
    check.status = Status::warning;
    check.found = "this machine has an NVIDIA GPU, but " + check.found;
    check.advice = "to use it install NVIDIA's driver; a container needs --gpus all";
  } else if (found.driver_version == 0) {
    check.status = Status::absent;
  } else if (std::getenv("CUDA_VISIBLE_DEVICES") != nullptr) {
    check.status = Status::warning;
    check.advice = "unset CUDA_VISIBLE_DEVICES, or let it name devices that nvidia-smi lists";
  } else {
    check.status = Status::error;
    check.advice = found.driver_version < found.runtime_version
                       ? fmt::format("install a driver for CUDA {}, or build with CUDA {} or older",
                                     cuda_text(found.runtime_version), cuda_text(found.driver_version))
                       : std::string("see whether nvidia-smi works, and what dmesg says of the driver");
  }
  return {check};
}

Checks device_checks() {
  Checks checks;
  for (int i = 0; i < cuda_devices().count; ++i) {
    try {
      checks.push_back(device_check(i));
    } catch (const Error& e) {
      checks.push_back({fmt::format("gpu.{}", i), Status::error, e.what(),
                        "look for the GPU's errors in dmesg; CUDA_VISIBLE_DEVICES leaves it out"});
    }
  }
  return checks;
}

Checks gpu_libraries_check() {
  if (cuda_devices().count == 0) return {};
  const bool nccl = nccl_missing().empty();
  Check check{"gpu.libraries", Status::ok,
              fmt::format("cuDNN {}, cuBLAS {}, {}", cudnn_version(), cublas_version(),
                          nccl ? "NCCL " + nccl_version() : "no NCCL: exchange.transport is mpi or threads")};
  check.values = {{"cudnn", cudnn_version()},
                  {"cublas", cublas_version()},
                  {"nccl", nccl ? ordered_json(nccl_version()) : ordered_json(nullptr)}};
  return {check};
}

}  // namespace lpsgd::doctor
