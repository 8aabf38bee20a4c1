// What is logged, for tests.
#pragma once

#include <spdlog/sinks/ostream_sink.h>

#include <memory>
#include <sstream>
#include <string>

#include "core/log.h"

namespace lpsgd {

/// Collects all that is logged while it lives.
class CapturedLog {
 public:
  CapturedLog() : before_(spdlog::default_logger()) {
    spdlog::set_default_logger(
        std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text_)));
  }
  ~CapturedLog() { spdlog::set_default_logger(before_); }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;

  std::string text() const { return text_.str(); }
  /// How often it holds `piece`.
  int count(const std::string& piece) const {
    int n = 0;
    const std::string all = text();
    for (std::size_t at = all.find(piece); at != std::string::npos; at = all.find(piece, at + 1)) ++n;
    return n;
  }

 private:
  const std::shared_ptr<spdlog::logger> before_;
  std::ostringstream text_;
};

}  // namespace lpsgd
