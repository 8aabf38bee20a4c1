#include "trainer/progress.h"

#include <fmt/format.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "core/clock.h"
#include "nn/network.h"

namespace lpsgd {

namespace {

void append(fmt::memory_buffer& out, const StepLine& l) {
  fmt::format_to(std::back_inserter(out), "step {}/{} | loss ", l.step, l.steps);
  if (l.loss)
    fmt::format_to(std::back_inserter(out), "{:.4f}", *l.loss);
  else
    out.push_back('-');
  fmt::format_to(std::back_inserter(out),
                 " | lr {:.1e} | {:.1f} ms | {:.0f} samples/s | comm {:.0f}% | wire ", l.lr,
                 l.step_seconds * 1e3, l.samples_per_second, l.communication * 100);
  if (l.compression > 0)
    fmt::format_to(std::back_inserter(out), "{:.1f}x", l.compression);
  else
    out.push_back('-');
}

}  // namespace

std::string text(const StepLine& line) {
  fmt::memory_buffer out;
  append(out, line);
  return fmt::to_string(out);
}

std::string duration_text(double seconds) {
  const auto s = static_cast<std::int64_t>(seconds + 0.5);
  if (s >= 3600) return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
  if (s >= 60) return fmt::format("{}m{:02}s", s / 60, s % 60);
  return fmt::format("{}s", s);
}

bool is_on_terminal() {
  // tcgetsid fails unless the terminal controls this process.
  return ::isatty(STDOUT_FILENO) == 1 && ::tcgetsid(STDOUT_FILENO) == ::getsid(0);
}

Progress::Progress(bool active, ProgressMode mode, std::int64_t first_step, std::int64_t total_steps)
    : active_(active && mode != ProgressMode::none),
      terminal_(mode == ProgressMode::terminal || (mode == ProgressMode::automatic && is_on_terminal())),
      first_step_(first_step),
      total_steps_(total_steps),
      started_(now_seconds()) {}

Progress::~Progress() {
  if (open_) std::fputc('\n', stdout);
}

bool Progress::due(std::int64_t step) const {
  const bool forced = step == first_step_ + 1 || step == total_steps_;
  return active_ && (forced || now_seconds() - shown_ >= (terminal_ ? 0.1 : 10.0));
}

void Progress::step(std::int64_t step, const BatchMetrics& since_line, double lr, double seconds,
                    double communication_seconds, std::int64_t samples, double compression, bool due) {
  if (!active_) return;
  ++steps_;
  seconds_ += seconds;
  communication_ += communication_seconds;
  samples_ += samples;
  if (!due) return;
  const double now = now_seconds();
  shown_ = now;
  const double n = static_cast<double>(steps_);
  fmt::memory_buffer out;  // on the stack: a step allocates nothing
  if (terminal_) out.append(std::string_view("\r\x1b[K"));
  // With sync.delay a rank may wait for an exchange between two steps.
  std::optional<double> loss;  // this rank's streams of sequences may have been empty
  if (since_line.samples > 0) loss = since_line.loss / static_cast<double>(since_line.samples);
  append(out, {step, total_steps_, loss, lr, seconds_ / n, static_cast<double>(samples_) / seconds_,
               std::min(1.0, communication_ / seconds_), compression});
  const double per_step = (now - started_) / static_cast<double>(step - first_step_);
  if (step != total_steps_)
    fmt::format_to(std::back_inserter(out), " | {} left",
                   duration_text(per_step * static_cast<double>(total_steps_ - step)));
  steps_ = samples_ = 0;
  seconds_ = communication_ = 0;
  if (!terminal_) out.push_back('\n');
  open_ = terminal_;
  std::fwrite(out.data(), 1, out.size(), stdout);
  std::fflush(stdout);
}

void Progress::line(const std::string& text) {
  if (!active_) return;
  std::fprintf(stdout, "%s%s\n", open_ ? "\r\x1b[K" : "", text.c_str());
  open_ = false;
  std::fflush(stdout);
}

}  // namespace lpsgd
