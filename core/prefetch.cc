#include "core/prefetch.h"

namespace lpsgd {

const std::size_t prefetch_distance = __builtin_cpu_is("amd") ? 0 : 1024;

}  // namespace lpsgd
