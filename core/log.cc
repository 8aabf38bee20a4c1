#include "core/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/printable.h"

#if FMT_VERSION < 100000
FMT_BEGIN_NAMESPACE
template void detail::vformat_to<char>(detail::buffer<char>&, basic_string_view<char>,
                                       basic_format_args<FMT_BUFFER_CONTEXT(char)>, detail::locale_ref);
FMT_END_NAMESPACE
#endif

namespace lpsgd {

namespace {

/// The message, with the control characters of what it quotes escaped.
class PrintableMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const std::string text = printable_lines({message.payload.data(), message.payload.size()});
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<PrintableMessage>();
  }
};

}  // namespace

void init_logging(int rank, int size) {
  spdlog::drop("lpsgd");
  auto logger = spdlog::stderr_logger_mt("lpsgd");
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<PrintableMessage>('*').set_pattern(size > 1 ? fmt::format("[rank {}] %l: %*", rank)
                                                                  : "%l: %*");
  logger->set_formatter(std::move(formatter));
  const char* level = std::getenv("LPSGD_LOG");
  logger->set_level(level       ? spdlog::level::from_str(level)
                    : rank == 0 ? spdlog::level::info
                                : spdlog::level::warn);
  spdlog::set_default_logger(logger);
}

}  // namespace lpsgd
