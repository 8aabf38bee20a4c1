// Spans of time on tracks, written as a Chrome trace: JSON that Perfetto, chrome://tracing and PyTorch's
// Kineto tools read. Each rank has one Trace.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace lpsgd {

class Trace {
 public:
  using Track = std::uint32_t;  // a row of the timeline; its spans nest or follow each other
  using Label = std::uint32_t;  // the name and category of a span

  /// Keeps up to `capacity` spans. Later ones are dropped and counted.
  explicit Trace(std::size_t capacity = std::size_t{1} << 20);

  /// Make a track or a label; a track of that name serves again. Tracks appear in the order in which they are
  /// made. A '#' in the name of a label is followed by the number of the span. Both functions take a lock, so
  /// call them before the steps.
  Track track(const std::string& name);
  Label label(const std::string& name, const std::string& category);

  /// Adds a span. May be called from any thread; takes no lock. `start` and `end` are of now_seconds().
  /// `number` is the step or a number of bytes. A negative one is not written.
  void span(Track track, Label label, double start, double end, std::int64_t number = -1) noexcept;

  /// `add` is called before the trace is written, to add spans that are not known before, until the source is
  /// removed.
  std::size_t add_source(std::function<void()> add);
  void remove_source(std::size_t source);

  std::size_t dropped() const;
  /// Writes the file and keeps the spans. Throws FileError.
  void write(const std::string& path, int rank, int ranks);

 private:
  struct Span {
    double start, end;
    std::int64_t number;
    Track track;
    Label label;
  };
  struct LabelText {
    std::string name, category;
  };
  mutable std::mutex mutex_;
  std::vector<std::string> tracks_;
  std::vector<LabelText> labels_;
  std::vector<Span> spans_;
  std::map<std::size_t, std::function<void()>> sources_;
  std::size_t next_source_ = 0;
  std::atomic<std::size_t> count_{0};
};

}  // namespace lpsgd
