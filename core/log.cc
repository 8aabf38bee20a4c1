#include "core/log.h"

#include <spdlog/sinks/stdout_sinks.h>

#include <cstdlib>
#include <string>

namespace lpsgd {

void init_logging(int rank, int size) {
  spdlog::drop("lpsgd");
  auto logger = spdlog::stderr_logger_mt("lpsgd");
  logger->set_pattern(size > 1 ? fmt::format("[rank {}] %l: %v", rank) : "%l: %v");
  const char* level = std::getenv("LPSGD_LOG");
  logger->set_level(level       ? spdlog::level::from_str(level)
                    : rank == 0 ? spdlog::level::info
                                : spdlog::level::warn);
  spdlog::set_default_logger(logger);
}

}  // namespace lpsgd
