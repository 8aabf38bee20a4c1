// Spans of the work on a device's stream, by the device's clock, on one track of a trace. The host does not
// wait for them: spans are added once their work is done, at the latest when the trace is written.
#pragma once

#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/trace.h"

namespace lpsgd {

class StreamTrace {
 public:
  /// Spans of `stream` on a track of that name. `trace` outlives this object; the stream is not captured.
  StreamTrace(Trace& trace, StreamView stream, const std::string& track);
  ~StreamTrace();
  StreamTrace(const StreamTrace&) = delete;
  StreamTrace& operator=(const StreamTrace&) = delete;

  Trace::Label label(const std::string& name, const std::string& category = "kernel") {
    return trace_.label(name, category);
  }
  /// Calls `body`, which queues work on the stream, for a span of that work. One thread at a time.
  template <class Body>
  void span(Trace::Label label, const Body& body, std::int64_t number = -1) {
    begin(label, number);
    body();
    end();
  }

 private:
  struct Span {
    Event begin, end;
    Trace::Label label = 0;
    std::int64_t number = -1;
  };
  void begin(Trace::Label label, std::int64_t number);
  void end();
  void collect(bool waits);  // with mutex_ held

  Trace& trace_;
  const StreamView stream_;
  const Trace::Track track_;
  std::size_t source_ = 0;
  std::mutex mutex_;  // guards what follows: the trace may be written by another thread
  std::deque<Span> queued_;
  std::vector<Span> free_;
  Span open_;
  Event origin_;            // a point in the stream's work,
  double origin_time_ = 0;  // and its time on the host's clock
};

}  // namespace lpsgd
