#include "trainer/step_exchange.h"

#include "core/error.h"
#include "nn/network.h"

namespace lpsgd {

StepExchange::StepExchange(Transport& transport, const Network& network, const std::vector<CodecSpec>& codecs,
                           std::span<float> values, const ExchangeOptions& options)
    : transport_(transport), network_(network), values_(values), options_(options), coded_(make(codecs)) {}

std::unique_ptr<Exchange> StepExchange::make(const std::vector<CodecSpec>& codecs) const {
  return std::make_unique<Exchange>(transport_, network_.tensors(), codecs, values_,
                                    network_.announce_order(), options_);
}

void StepExchange::set_warmup(bool on) {
  require(!(*this)->is_open(), "the warm-up begins or ends while a step is open");
  float32_.reset();
  if (on) float32_ = make(std::vector<CodecSpec>(network_.tensors().size()));
}

void StepExchange::take_errors(std::span<CodingError> sums) const {
  if (!is_warmup()) return coded_->take_errors(sums);
  std::vector<CodingError> plain(sums.size());
  float32_->take_errors(plain);
  for (std::size_t t = 0; t < sums.size(); ++t)
    sums[t].add({.exchanges = plain[t].exchanges, .float32 = plain[t].float32, .bytes = plain[t].bytes});
}

}  // namespace lpsgd
