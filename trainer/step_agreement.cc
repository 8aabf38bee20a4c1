#include "trainer/step_agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

namespace lpsgd {

namespace {

constexpr std::int64_t most_steps = 1'000'000'000;  // between two questions
// A question may be put off for an exchange to so many intervals, and for about so many seconds.
constexpr std::int64_t most_intervals = 10;
constexpr double most_seconds = 30;

}  // namespace

StepAgreement::StepAgreement(Transport& transport, double seconds)
    : transport_(transport), seconds_(seconds), messages_(static_cast<std::size_t>(transport.size())) {}

void StepAgreement::restart(double now) {
  steps_ = 0;
  since_ = now;
}

Agreed StepAgreement::after_step(double now, const Agreed& mine, bool exchanging) {
  if (++steps_ < interval_ || (exchanging && steps_ < latest_)) return {.busy = true};
  const double longest = static_cast<double>(2 * interval_);
  const double per_step = (now - since_) / static_cast<double>(steps_);
  const double steps = per_step * longest > seconds_ ? seconds_ / per_step : longest;
  const std::int64_t next = std::clamp<std::int64_t>(static_cast<std::int64_t>(steps), 1, most_steps);
  const double latest = std::min(static_cast<double>(most_intervals * next), most_seconds / per_step);
  return gather(now, mine, next, static_cast<std::int64_t>(latest));
}

Agreed StepAgreement::gather(double now, const Agreed& mine, std::int64_t next, std::int64_t latest) {
  const Message message{mine.signal, mine.save ? 1 : 0, mine.busy ? 1 : 0, next, std::max(next, latest)};
  transport_.all_gather(std::as_bytes(std::span(&message, 1)), std::as_writable_bytes(std::span(messages_)));
  for (std::size_t r = 0; r < messages_.size(); ++r) {
    const Message& m = messages_[r];
    if (m.signal < 0 || m.signal > 64 || m.interval < 1 || m.interval > most_steps || m.latest < m.interval ||
        m.latest > most_intervals * m.interval)
      throw impossible(
          r, fmt::format("signal {} and an interval of {} to {} steps", m.signal, m.interval, m.latest));
  }
  interval_ = messages_[0].interval;
  latest_ = messages_[0].latest;
  restart(now);
  Agreed out{.save = messages_[0].save != 0};
  for (const Message& m : messages_) {
    out.signal = std::max(out.signal, static_cast<int>(m.signal));
    out.busy |= m.busy != 0;
  }
  return out;
}

}  // namespace lpsgd
