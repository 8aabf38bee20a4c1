#include "core/range.h"

#ifdef LPSGD_HAVE_CUDA
#include <nvtx3/nvToolsExt.h>
#endif

namespace lpsgd {

#ifdef LPSGD_HAVE_CUDA
ScopedRange::ScopedRange(const char* name) {
  nvtxRangePushA(name);
}
ScopedRange::~ScopedRange() {
  nvtxRangePop();
}
#else
ScopedRange::ScopedRange(const char*) {}
ScopedRange::~ScopedRange() = default;
#endif

}  // namespace lpsgd
