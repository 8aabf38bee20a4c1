#include "core/stream_trace.h"

#include <limits>
#include <utility>

#include "core/clock.h"
#include "core/error.h"

namespace lpsgd {

StreamTrace::StreamTrace(Trace& trace, StreamView stream, const std::string& track)
    : trace_(trace),
      stream_(stream),
      track_(trace.track(track)),
      open_{Event(stream.device(), Event::Timing::on), Event(stream.device(), Event::Timing::on)},
      origin_(stream.device(), Event::Timing::on) {
  // The event happened between two readings of the host's clock; the shortest interval of four tries is
  // taken.
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 4; ++i) {
    Event point(stream.device(), Event::Timing::on);
    const double before = now_seconds();
    point.record(stream_);
    point.synchronize();
    const double after = now_seconds();
    if (after - before >= least) continue;
    least = after - before;
    origin_ = std::move(point);
    origin_time_ = (before + after) / 2;
  }
  source_ = trace_.add_source([this] {
    const std::lock_guard lock(mutex_);
    collect(true);
  });
}

StreamTrace::~StreamTrace() {
  trace_.remove_source(source_);
  try {
    collect(true);
  } catch (const Error&) {  // of earlier work: it is reported elsewhere
  }
}

void StreamTrace::begin(Trace::Label label, std::int64_t number) {
  const std::lock_guard lock(mutex_);
  collect(false);
  open_.label = label;
  open_.number = number;
  open_.begin.record(stream_);
}

void StreamTrace::end() {
  const std::lock_guard lock(mutex_);
  open_.end.record(stream_);
  queued_.push_back(std::move(open_));
  if (free_.empty()) {
    open_ = {Event(stream_.device(), Event::Timing::on), Event(stream_.device(), Event::Timing::on)};
  } else {
    open_ = std::move(free_.back());
    free_.pop_back();
  }
}

void StreamTrace::collect(bool waits) {
  while (!queued_.empty()) {
    Span& oldest = queued_.front();
    if (waits)
      oldest.end.synchronize();
    else if (!oldest.end.done())
      return;
    const double begin = origin_time_ + seconds_between(origin_, oldest.begin);
    trace_.span(track_, oldest.label, begin, begin + seconds_between(oldest.begin, oldest.end),
                oldest.number);
    if (begin - origin_time_ > 1) {  // an event's clock loses precision far from the reference
      std::swap(origin_, oldest.begin);
      origin_time_ = begin;
    }
    free_.push_back(std::move(oldest));
    queued_.pop_front();
  }
}

}  // namespace lpsgd
