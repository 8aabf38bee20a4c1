// Sizes on the wire, and residuals when the number of ranks changes.
#include <fmt/core.h>

#include <algorithm>

#include "comm/exchange.h"
#include "core/error.h"

namespace lpsgd {

std::uint64_t wire_bytes(const TensorInfo& tensor, const CodecSpec& codec, int ranks) {
  const auto c = make_codec(codec, tensor);
  std::uint64_t bytes = 0;
  for (const Stripe& stripe : stripes(tensor.elements, c->bucket(), ranks, 0))
    bytes += c->encoded_bytes(stripe.last - stripe.first);
  return bytes;
}

std::vector<ExchangeState> redistribute(const std::vector<ExchangeState>& old,
                                        const std::vector<TensorInfo>& tensors,
                                        const std::vector<CodecSpec>& codecs, int ranks) {
  require(!old.empty() && ranks >= 1 && codecs.size() == tensors.size(),
          "redistribute needs the state of at least one rank and one codec per tensor");
  const auto old_ranks = static_cast<int>(old.size());
  for (int r = 0; r < old_ranks; ++r) {
    const ExchangeState& state = old[static_cast<std::size_t>(r)];
    if (state.round1.size() != tensors.size() || state.round2.size() != tensors.size())
      throw Error(fmt::format("residuals of rank {}: {} and {} tensors where the network has {}", r,
                              state.round1.size(), state.round2.size(), tensors.size()));
  }
  std::vector<ExchangeState> states(static_cast<std::size_t>(ranks));
  for (ExchangeState& state : states) {
    state.round1.resize(tensors.size());
    state.round2.resize(tensors.size());
  }
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (!codecs[t].error_feedback) continue;
    const auto elements = static_cast<std::size_t>(tensors[t].elements);
    const std::int64_t bucket = codecs[t].bucket.of(tensors[t]);
    const auto check = [&](std::size_t size, std::size_t expected, const char* round, int rank) {
      if (size != expected)
        throw Error(fmt::format("residuals of rank {}: tensor {}: {} holds {} values, expected {}", rank,
                                tensors[t].name, round, size, expected));
    };

    std::vector<float> mean(elements);
    for (int r = 0; r < old_ranks; ++r)
      check(old[static_cast<std::size_t>(r)].round1[t].size(), elements, "round 1", r);
    for (std::size_t i = 0; i < elements; ++i) {
      double sum = 0;
      for (const ExchangeState& state : old) sum += static_cast<double>(state.round1[t][i]);
      mean[i] = static_cast<float>(sum / old_ranks);
    }
    for (ExchangeState& state : states) state.round1[t] = mean;

    std::vector<float> whole(elements);
    for (const Stripe& stripe : stripes(tensors[t].elements, bucket, old_ranks, t)) {
      const std::vector<float>& part = old[static_cast<std::size_t>(stripe.owner)].round2[t];
      check(part.size(), static_cast<std::size_t>(stripe.last - stripe.first), "round 2", stripe.owner);
      std::copy(part.begin(), part.end(), whole.begin() + stripe.first);
    }
    for (const Stripe& stripe : stripes(tensors[t].elements, bucket, ranks, t))
      states[static_cast<std::size_t>(stripe.owner)].round2[t].assign(whole.begin() + stripe.first,
                                                                      whole.begin() + stripe.last);
  }
  return states;
}

}  // namespace lpsgd
