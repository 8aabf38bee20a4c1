// Logging to standard error through spdlog, one line for each event. If there are several ranks, the rank is
// in front. The environment variable LPSGD_LOG sets the level: trace, debug, info, warning, error or off. The
// default is info on rank 0 and warning on other ranks.
#pragma once

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#if FMT_VERSION < 100000
// spdlog calls it in its headers. Without this declaration, of fmt 9's signature, each file that logs would
// compile all of fmt's formatting.
FMT_BEGIN_NAMESPACE
namespace detail {
extern template void vformat_to<char>(buffer<char>&, basic_string_view<char>,
                                      basic_format_args<FMT_BUFFER_CONTEXT(char)>, locale_ref);
}
FMT_END_NAMESPACE
#endif

namespace lpsgd {

/// Sets the pattern and the level of this process, which logs to stderr. May be called again.
void init_logging(int rank, int size);

namespace log = spdlog;

}  // namespace lpsgd
