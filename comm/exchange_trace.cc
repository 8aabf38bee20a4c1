#include "comm/exchange_trace.h"

#include <fmt/format.h>

#include <map>
#include <set>

namespace lpsgd {

ExchangeTrace::ExchangeTrace(Trace& trace, std::span<const Unit> plan,
                             std::span<const ExchangeTensor> tensors, std::size_t slots, bool on_gpu)
    : trace_(trace), thread_(trace.track(on_gpu ? "GPU: coding stream" : "communication thread: coding")) {
  const char* const coding = on_gpu ? "kernel" : "cpu_op";
  for (std::size_t p = 0; p < slots; ++p) slots_.push_back(trace.track(fmt::format("exchange, slot {}", p)));
  std::map<std::size_t, int> chunks, numbered;
  for (const Unit& unit : plan) ++chunks[unit.segments.front().tensor];
  for (const Unit& unit : plan) {
    std::set<std::size_t> held;
    for (const Segment& segment : unit.segments) held.insert(segment.tensor);
    const std::size_t first = unit.segments.front().tensor;
    std::string name = tensors[first].info.name;
    if (held.size() > 1)
      name += fmt::format(" and {} more", held.size() - 1);
    else if (chunks[first] > 1)
      name += fmt::format(" {}/{}", ++numbered[first], chunks[first]);
    labels_.push_back({{trace.label("encode " + name, coding), trace.label("reduce " + name, coding),
                        trace.label("decode " + name, coding)},
                       // HTA counts names that match ^nccl.*Kernel as communication.
                       trace.label("nccl:exchange Kernel: " + name, "kernel"),
                       static_cast<std::int64_t>(unit.bytes())});
  }
}

}  // namespace lpsgd
