#include "core/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/file.h"

namespace lpsgd {

Trace::Trace(std::size_t capacity) : spans_(capacity) {}

Trace::Track Trace::track(const std::string& name) {
  const std::lock_guard lock(mutex_);
  tracks_.push_back(name);
  return static_cast<Track>(tracks_.size() - 1);
}

Trace::Label Trace::label(const std::string& name, const std::string& category) {
  const std::lock_guard lock(mutex_);
  labels_.push_back({name, category});
  return static_cast<Label>(labels_.size() - 1);
}

void Trace::span(Track track, Label label, double start, double end, std::int64_t number) noexcept {
  const std::size_t i = count_.fetch_add(1, std::memory_order_relaxed);
  if (i < spans_.size()) spans_[i] = {start, end, number, track, label};
}

std::size_t Trace::dropped() const {
  const std::size_t count = count_.load();
  return count > spans_.size() ? count - spans_.size() : 0;
}

void Trace::write(const std::string& path, int rank, int ranks) const {
  const std::lock_guard lock(mutex_);
  const auto quoted = [](const std::string& text) {
    return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  // Readers of Kineto's files look for `"rank": 0` with the space.
  std::string out = fmt::format(
      "{{\n\"schemaVersion\": 1,\n\"distributedInfo\": {{\"backend\": \"nccl\", \"rank\": {}, "
      "\"world_size\": {}}},\n"
      "\"displayTimeUnit\": \"ms\",\n\"traceEvents\": [\n",
      rank, ranks);
  out += fmt::format(
      R"({{"ph": "M", "name": "process_name", "pid": {0}, "tid": 0, "args": {{"name": "rank {0}"}}}})", rank);
  for (std::size_t t = 0; t < tracks_.size(); ++t) {
    out += fmt::format(
        ",\n"
        R"({{"ph": "M", "name": "thread_name", "pid": {}, "tid": {}, "args": {{"name": {}}}}})",
        rank, t, quoted(tracks_[t]));
    out += fmt::format(
        ",\n"
        R"({{"ph": "M", "name": "thread_sort_index", "pid": {}, "tid": {}, "args": {{"sort_index": {}}}}})",
        rank, t, t);
  }
  const std::size_t count = std::min(count_.load(), spans_.size());
  for (std::size_t i = 0; i < count; ++i) {
    const Span& s = spans_[i];
    const LabelText& label = labels_[s.label];
    std::string name = label.name;
    if (const std::size_t at = name.find('#'); at != std::string::npos && s.number >= 0)
      name.replace(at, 1, fmt::format("#{}", s.number));
    out += fmt::format(
        ",\n"
        R"({{"ph": "X", "cat": "{}", "name": {}, "pid": {}, "tid": {}, "ts": {:.3f}, "dur": {:.3f}, "args": {{)",
        label.category, quoted(name), rank, s.track, s.start * 1e6, std::max(0.0, s.end - s.start) * 1e6);
    if (label.category == "kernel") out += fmt::format(R"("stream": {})", s.track);
    if (s.number >= 0)
      out += fmt::format(R"({}"number": {})", label.category == "kernel" ? ", " : "", s.number);
    out += "}}";
  }
  out += "\n]\n}\n";
  write_file(path, out);
}

}  // namespace lpsgd
