// Spans of time on tracks, written as a Chrome trace (the JSON that Perfetto, chrome://tracing and PyTorch's
// Kineto tools read). One Trace per rank.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace lpsgd {

class Trace {
 public:
  using Track = std::uint32_t;  // one row of the picture; spans on it nest or follow each other
  using Label = std::uint32_t;  // a span's name and category

  /// Keeps up to `capacity` spans; later ones are counted and dropped.
  explicit Trace(std::size_t capacity = std::size_t{1} << 20);

  /// Rows are shown in the order in which they are made. Both take a lock: call them before the steps.
  Track track(const std::string& name);
  Label label(const std::string& name, const std::string& category);

  /// From any thread, without a lock. Seconds of now_seconds(). `number` is shown with the span where it is
  /// not negative: the step, or bytes.
  void span(Track track, Label label, double start, double end, std::int64_t number = -1) noexcept;

  std::size_t dropped() const;
  /// Writes the file; the spans stay. Errors: FileError.
  void write(const std::string& path, int rank, int ranks) const;

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
  std::atomic<std::size_t> count_{0};
};

}  // namespace lpsgd
