#include "quant/codec_table.h"

#include <fmt/format.h>

#include "core/error.h"

namespace lpsgd {

// A file of quant/codecs defines <kind>_row() and, for each instruction set, <kind>_kernels(). The GPU's are
// in lpsgd::cuda.
#define LPSGD_DECLARE_KERNELS(kind, Options) CodecKernels kind##_kernels();
#define LPSGD_DECLARE_ROW(kind, Options) CodecRow kind##_row();
// clang-format off
namespace baseline { LPSGD_CODECS(LPSGD_DECLARE_KERNELS) }
namespace avx2 { LPSGD_CODECS(LPSGD_DECLARE_KERNELS) }
namespace avx512 { LPSGD_CODECS(LPSGD_DECLARE_KERNELS) }
#if LPSGD_HAVE_CUDA
namespace cuda { LPSGD_CODECS(LPSGD_DECLARE_KERNELS) }
#define LPSGD_ON_CUDA(kind) cuda::kind##_kernels
#else
#define LPSGD_ON_CUDA(kind) nullptr
#endif
LPSGD_CODECS(LPSGD_DECLARE_ROW)
// clang-format on

std::span<const CodecEntry> codec_table() {
#define LPSGD_ENTRY(kind, Options)                              \
  {#kind, Options(), kind##_row(),                              \
   [](CpuIsa isa) {                                             \
     return isa == CpuIsa::avx512 ? avx512::kind##_kernels()    \
            : isa == CpuIsa::avx2 ? avx2::kind##_kernels()      \
                                  : baseline::kind##_kernels(); \
   },                                                           \
   LPSGD_ON_CUDA(kind)},
  static const CodecEntry table[] = {LPSGD_CODECS(LPSGD_ENTRY)};
  return table;
}

const CodecEntry& codec_entry(std::string_view kind) {
  for (const CodecEntry& entry : codec_table())
    if (kind == entry.name) return entry;
  throw Error(fmt::format("internal error: no codec has the name '{}'", kind));
}

std::optional<OptionConflict> find_conflict(const CodecSpec& spec) {
  const auto conflict = codec_entry(spec.kind).row.conflict;
  return conflict ? conflict(spec) : std::nullopt;
}

}  // namespace lpsgd
