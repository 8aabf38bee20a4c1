#include "comm/waiting.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <system_error>
#include <thread>

#include "comm/transport.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"
#include "core/printable.h"

namespace lpsgd {

Patience::Patience(Limit limit)
    : limit_(limit), period_(limit.seconds > 0 ? std::min(30.0, limit.seconds / 4) : 30), next_(period_) {}

bool Patience::due() {
  const double longest_round = std::min(5.0, period_ / 2);  // a longer one: the process was stopped
  const double now = now_seconds();
  if (last_ > 0) waited_ += std::min(now - last_, longest_round);
  last_ = now;
  if (waited_ < next_ && !is_over()) return false;
  next_ = waited_ + period_;
  return true;
}

void Patience::report(Transport& transport, const std::string& text) {
  if (!is_over()) return log::warn("{}", text);
  const std::string message = fmt::format("{}, as long as {} allows", text, limit_.name);
  transport.timed_out(message);
  transport.cancel();
  throw CommError(message);
}

namespace {

std::atomic<int> newest_end{0};

}  // namespace

void print_error(const std::string& message) noexcept {
  try {
    const std::string line = "lpsgd: error: " + printable_lines(message) + "\n";
    if (::write(STDERR_FILENO, line.data(), line.size()) < 0) return;
  } catch (const std::exception&) {  // no memory
  }
}

namespace {

void end_process_unless(const std::function<bool()>& is_taken_back, double seconds,
                        const std::string& message, const std::string& meanwhile = {}) noexcept {
  try {
    std::thread([=] {
      for (Patience patience({seconds, ""}); !is_taken_back();) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        if (!patience.due() || is_taken_back()) continue;
        if (patience.is_over()) {
          if (!message.empty()) print_error(message);
          ::_exit(1);
        }
        if (!meanwhile.empty()) log::warn("{}: {:.0f} s so far", meanwhile, patience.waited());
      }
    }).detach();
  } catch (const std::exception&) {  // no memory, or no thread: then nothing limits the end
  }
}

}  // namespace

void end_process_in(double seconds, const std::string& message, const std::string& meanwhile) noexcept {
  end_process_unless([mine = ++newest_end] { return newest_end != mine; }, seconds, message, meanwhile);
}

void let_process_live() noexcept {
  ++newest_end;
}

ScopedProcessEnd::ScopedProcessEnd(double seconds, const std::string& message) noexcept {
  try {
    is_over_ = std::make_shared<std::atomic<bool>>(false);
  } catch (const std::bad_alloc&) {
    return;  // then nothing limits the end
  }
  end_process_unless([is_over = is_over_] { return is_over->load(); }, seconds, message);
}

ScopedProcessEnd::~ScopedProcessEnd() {
  if (is_over_) *is_over_ = true;
}

double seconds_until_turn(int rank) {
  return rank == 0 ? 1.5 : 1.5 + 0.5 * (1 + std::min(rank, 6));
}

void await_turn(int rank) noexcept {
  struct sigaction now {};
  if (::sigaction(SIGTERM, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) ::signal(SIGTERM, SIG_DFL);
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds_until_turn(rank)));
}

}  // namespace lpsgd
