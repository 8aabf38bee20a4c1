// A step's exchange. In the warm-up of the codecs (exchange.warmup_epochs) another one takes its place, which
// sends float32, as 1-bit Adam begins (Tang et al. 2021).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "comm/exchange.h"
#include "comm/transport.h"

namespace lpsgd {

class Network;

class StepExchange {
 public:
  /// Of `values`, laid out like the network's gradients. Transport, network and values outlive the object.
  /// Collective.
  StepExchange(Transport& transport, const Network& network, const std::vector<CodecSpec>& codecs,
               std::span<float> values, const ExchangeOptions& options);

  /// The one in use.
  Exchange& operator*() const { return float32_ ? *float32_ : *coded_; }
  Exchange* operator->() const { return &**this; }
  /// The one through the codecs, which has the residuals.
  Exchange& coded() const { return *coded_; }

  bool is_warmup() const { return float32_ != nullptr; }
  /// What the exchange in use has measured is lost. Collective.
  void set_warmup(bool on);
  /// As Exchange::take_errors. In a warm-up only exchanges and bytes are counted.
  void take_errors(std::span<CodingError> sums) const;

 private:
  std::unique_ptr<Exchange> make(const std::vector<CodecSpec>& codecs) const;

  Transport& transport_;
  const Network& network_;
  const std::span<float> values_;
  const ExchangeOptions options_;
  const std::unique_ptr<Exchange> coded_;
  std::unique_ptr<Exchange> float32_;  // null outside the warm-up
};

}  // namespace lpsgd
