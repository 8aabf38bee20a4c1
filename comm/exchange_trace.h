// An exchange's spans in a trace: all coding, and each unit from its first encoding to its last decoding.
#pragma once

#include <span>
#include <vector>

#include "comm/exchange_plan.h"
#include "comm/exchange_tensor.h"
#include "core/trace.h"

namespace lpsgd {

class ExchangeTrace {
 public:
  enum class Work : std::uint8_t { encode, reduce, decode };

  /// `slots`: how many units are in flight at most; each has a track of its own, because they overlap.
  /// `on_gpu`: a GPU codes.
  ExchangeTrace(Trace& trace, std::span<const Unit> plan, std::span<const ExchangeTensor> tensors,
                std::size_t slots, bool on_gpu);
  Trace& trace() { return trace_; }

  void coded(std::size_t unit, Work work, double start, double end) {
    trace_.span(thread_, labels_[unit].coding[static_cast<std::size_t>(work)], start, end);
  }
  void carried(std::size_t unit, double start, double end) {
    trace_.span(slots_[unit % slots_.size()], labels_[unit].exchange, start, end, labels_[unit].bytes);
  }

 private:
  struct Labels {
    Trace::Label coding[3];
    Trace::Label exchange;
    std::int64_t bytes;  // of one encoded copy
  };
  Trace& trace_;
  Trace::Track thread_;
  std::vector<Trace::Track> slots_;
  std::vector<Labels> labels_;
};

}  // namespace lpsgd
