#include "trainer/data_progress.h"

#include <fmt/format.h>

#include <cstdio>

#include "core/clock.h"
#include "trainer/progress.h"

namespace lpsgd {

DataProgress::DataProgress(std::string what, std::int64_t total)
    : what_(std::move(what)),
      total_(total),
      terminal_(is_on_terminal()),
      started_(now_seconds()),
      shown_(started_) {}

DataProgress::~DataProgress() {
  if (open_) fmt::print("\r\033[K");
  std::fflush(stdout);
}

void DataProgress::count() {
  const std::lock_guard lock(mutex_);
  ++done_;
  if (now_seconds() - shown_ >= (terminal_ ? 0.1 : 10.0)) show();
}

void DataProgress::show() {
  shown_ = now_seconds();
  const double rate = static_cast<double>(done_) / (shown_ - started_);
  const double left = static_cast<double>(total_ - done_) / rate;
  fmt::print("{}{}: {} of {} | {:.0f}/s | {} left{}", terminal_ ? "\r\033[K" : "", what_, done_, total_, rate,
             duration_text(left), terminal_ ? "" : "\n");
  open_ = terminal_;
  std::fflush(stdout);
}

void DataProgress::line(const std::string& text) {
  const std::lock_guard lock(mutex_);
  fmt::print("{}{}\n", open_ ? "\r\033[K" : "", text);
  open_ = false;
  std::fflush(stdout);
}

}  // namespace lpsgd
