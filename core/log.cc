#include "core/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <cctype>
#include <cstdlib>
#include <memory>
#include <optional>
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

/// In letters of either case.
std::optional<spdlog::level::level_enum> level_of(std::string word) {
  for (char& c : word) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const spdlog::level::level_enum level = spdlog::level::from_str(word);  // `off` for what it does not know
  if (level == spdlog::level::off && word != "off") return std::nullopt;
  return level;
}

}  // namespace

void init_logging(int rank, int size) {
  spdlog::drop("lpsgd");
  auto logger = spdlog::stderr_logger_mt("lpsgd");
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<PrintableMessage>('*').set_pattern(size > 1 ? fmt::format("[rank {}] %l: %*", rank)
                                                                  : "%l: %*");
  logger->set_formatter(std::move(formatter));
  const char* const given = std::getenv("LPSGD_LOG");
  const std::optional<spdlog::level::level_enum> level = given ? level_of(given) : std::nullopt;
  logger->set_level(level.value_or(rank == 0 ? spdlog::level::info : spdlog::level::warn));
  spdlog::set_default_logger(logger);
  if (given && !level && rank == 0)
    log::warn("LPSGD_LOG: '{}' is no level; allowed: trace, debug, info, warn, err, critical, off", given);
}

}  // namespace lpsgd
