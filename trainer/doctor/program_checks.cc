// The program itself: what was built, and which instructions its kernels use here.
#include <dnnl.h>
#include <fmt/format.h>

#include "nn/compute.h"
#include "nn/cpu/kernels.h"
#include "quant/codec.h"
#include "trainer/doctor/checks.h"
#include "trainer/environment.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define LPSGD_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LPSGD_SANITIZED 1
#endif

namespace lpsgd::doctor {

namespace {

#if LPSGD_SANITIZED
constexpr bool is_sanitized = true;
#else
constexpr bool is_sanitized = false;
#endif

/// Which instructions oneDNN uses, as its variable ONEDNN_MAX_CPU_ISA names them.
std::string onednn_instructions() {
  switch (dnnl_get_effective_cpu_isa()) {
    case dnnl_cpu_isa_sse41:
      return "sse41";
    case dnnl_cpu_isa_avx:
      return "avx";
    case dnnl_cpu_isa_avx2:
      return "avx2";
    case dnnl_cpu_isa_avx2_vnni:
      return "avx2_vnni";
    case dnnl_cpu_isa_avx512_core:
      return "avx512_core";
    case dnnl_cpu_isa_avx512_core_vnni:
      return "avx512_core_vnni";
    case dnnl_cpu_isa_avx512_core_bf16:
      return "avx512_core_bf16";
    case dnnl_cpu_isa_avx512_core_amx:
      return "avx512_core_amx";
    default:
      return fmt::format("instructions {:#x}", static_cast<unsigned>(dnnl_get_effective_cpu_isa()));
  }
}

}  // namespace

Checks build_check() {
  const nlohmann::ordered_json build = build_and_libraries();
  const auto text = [&](const char* key) { return build.value(key, nlohmann::ordered_json()); };
  const std::string type = text("build_type").get<std::string>();
  const bool has_cuda = build["backends"].size() > 1;
  std::string cuda = "without CUDA";
  if (text("cuda_compiled_version").is_string()) {
    cuda = fmt::format("CUDA {}", text("cuda_compiled_version").get<std::string>());
    if (text("cuda_architectures").is_string())
      cuda += fmt::format(" for {}", text("cuda_architectures").get<std::string>());
    if (!has_cuda) cuda = "without the CUDA backend";
  }
  Check check{
      "program.build", Status::ok,
      fmt::format("lpsgd {}, revision {}, {}, compiled by {}, {}", text("lpsgd_version").get<std::string>(),
                  revision(), type, text("gcc_version").get<std::string>(), cuda)};
  for (const char* key : {"lpsgd_version", "git_hash", "build_type", "backends", "cuda_architectures"})
    check.values[key] = text(key);
  if (type == "Debug" || is_sanitized) {
    check.status = Status::warning;
    check.found += is_sanitized ? ", with a sanitizer" : "";
    check.advice = "this build is for tests, and slow: build with scripts/build release";
  } else if (text("cuda_compiled_version") == "emulated") {
    check.status = Status::warning;
    check.advice = "its GPU is emulated, for tests: build with scripts/build release";
  }
  return {check};
}

Checks instructions_check() {
  const std::string codecs = to_text(cpu_isas().back()), layers = std::string(cpu::kernels().name).substr(8),
                    library = onednn_instructions();
  const dnnl_version_t* version = dnnl_version();
  const bool bf16 = !unsupported(Compute::bf16);
  Check check{"program.kernels", Status::ok,
              fmt::format("codecs {}, layers {}, oneDNN {}.{}.{} {}; train.compute on the CPU: fp32{}",
                          codecs, layers, version->major, version->minor, version->patch, library,
                          bf16 ? ", bf16" : " alone")};
  check.values = {{"codecs", codecs}, {"layers", layers}, {"onednn", library}, {"bf16", bf16}};
  if (codecs == "baseline") {
    check.status = Status::warning;
    check.advice =
        "this processor has no AVX2, so codecs and layers are several times slower: use another one";
  }
  return {check};
}

}  // namespace lpsgd::doctor
