#include "quant/codec_table.h"

#include "core/error.h"

// The table: one line a kind. quant/codecs defines <kind>_row() and, for each instruction set,
// <kind>_kernels().
// clang-format off
#define LPSGD_CODECS(codec) \
  codec(none) \
  codec(fp16) \
  codec(bf16) \
  codec(onebit) \
  codec(qsgd) \
  codec(sign) \
  codec(topk) \
  codec(dynamic8)
// clang-format on

namespace lpsgd {

#define LPSGD_DECLARE_KERNELS(kind) CodecKernels kind##_kernels();
namespace baseline {
LPSGD_CODECS(LPSGD_DECLARE_KERNELS)
}
namespace avx2 {
LPSGD_CODECS(LPSGD_DECLARE_KERNELS)
}
namespace avx512 {
LPSGD_CODECS(LPSGD_DECLARE_KERNELS)
}
#define LPSGD_DECLARE_ROW(kind) CodecRow kind##_row();
LPSGD_CODECS(LPSGD_DECLARE_ROW)

std::span<const CodecEntry> codec_table() {
#define LPSGD_ENTRY(kind)                                       \
  {#kind, kind##_row(), [](CpuIsa isa) {                        \
     return isa == CpuIsa::avx512 ? avx512::kind##_kernels()    \
            : isa == CpuIsa::avx2 ? avx2::kind##_kernels()      \
                                  : baseline::kind##_kernels(); \
   }},
  static const CodecEntry table[] = {LPSGD_CODECS(LPSGD_ENTRY)};
  return table;
}

const CodecEntry& codec_entry(std::string_view kind) {
  for (const CodecEntry& entry : codec_table())
    if (kind == entry.name) return entry;
  throw Error("internal error: a codec that the table does not list");
}

}  // namespace lpsgd
