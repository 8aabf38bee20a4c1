#include "core/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/file.h"

namespace lpsgd {

namespace {

using nlohmann::ordered_json;

constexpr std::size_t block_bytes = std::size_t{1} << 20;  // written at a time

/// The format counts time in microseconds. Three decimals are kept.
double microseconds(double seconds) {
  return std::round(seconds * 1e9) / 1e3;
}

}  // namespace

Trace::Trace(std::size_t capacity) : spans_(capacity) {}

Trace::Track Trace::track(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find(tracks_.begin(), tracks_.end(), name);
  const auto at = static_cast<Track>(found - tracks_.begin());
  if (found == tracks_.end()) tracks_.push_back(name);
  return at;
}

std::size_t Trace::add_source(std::function<void()> add) {
  const std::lock_guard lock(mutex_);
  sources_[next_source_] = std::move(add);
  return next_source_++;
}
void Trace::remove_source(std::size_t source) {
  const std::lock_guard lock(mutex_);
  sources_.erase(source);
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

void Trace::write(const std::string& path, int rank, int ranks) {
  std::vector<std::function<void()>> sources;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, add] : sources_) sources.push_back(add);
  }
  for (const auto& add : sources) add();
  const std::lock_guard lock(mutex_);
  OutputFile file(path);
  // Readers of Kineto's files look for `"rank": 0` with the space, which an indented dump has.
  const ordered_json head{{"schemaVersion", 1},
                          {"distributedInfo", {{"backend", "nccl"}, {"rank", rank}, {"world_size", ranks}}},
                          {"displayTimeUnit", "ms"}};
  std::string text = head.dump(1);
  text.erase(text.rfind("\n}"));  // the list of events is the last member
  text += ",\n\"traceEvents\": [\n";
  const char* separator = "";
  const auto add = [&](const ordered_json& event) {
    text += std::exchange(separator, ",\n");
    text += event.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    if (text.size() < block_bytes) return;
    file.write(text);
    text.clear();
  };
  const auto add_metadata = [&](const char* name, std::size_t track, const ordered_json& arguments) {
    add({{"ph", "M"}, {"name", name}, {"pid", rank}, {"tid", track}, {"args", arguments}});
  };
  add_metadata("process_name", 0, {{"name", fmt::format("rank {}", rank)}});
  for (std::size_t t = 0; t < tracks_.size(); ++t) {
    add_metadata("thread_name", t, {{"name", tracks_[t]}});
    add_metadata("thread_sort_index", t, {{"sort_index", t}});
  }
  const std::size_t count = std::min(count_.load(), spans_.size());
  for (std::size_t i = 0; i < count; ++i) {
    const Span& s = spans_[i];
    const LabelText& label = labels_[s.label];
    std::string name = label.name;
    if (const std::size_t at = name.find('#'); at != std::string::npos && s.number >= 0)
      name.replace(at, 1, fmt::format("#{}", s.number));
    ordered_json arguments = ordered_json::object();
    if (label.category == "kernel" || label.category == "gpu_memcpy") arguments["stream"] = s.track;
    if (s.number >= 0) arguments["number"] = s.number;
    add({{"ph", "X"},
         {"cat", label.category},
         {"name", std::move(name)},
         {"pid", rank},
         {"tid", s.track},
         {"ts", microseconds(s.start)},
         {"dur", microseconds(std::max(0.0, s.end - s.start))},
         {"args", std::move(arguments)}});
  }
  text += "\n]\n}\n";
  file.write(text);
  file.close();
}

}  // namespace lpsgd
