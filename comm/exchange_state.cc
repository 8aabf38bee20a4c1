// Sizes on the wire, and residuals when the number of ranks changes.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "comm/exchange.h"
#include "comm/exchange_plan.h"
#include "core/error.h"

namespace lpsgd {

std::uint64_t wire_bytes(const TensorInfo& tensor, const CodecSpec& codec, int ranks) {
  return encoded_bytes_of_stripes(*make_codec(codec, tensor), tensor.elements, ranks);
}

Redistribution::Redistribution(const std::vector<TensorInfo>& tensors, const std::vector<CodecSpec>& codecs,
                               int old_ranks, int ranks, int rank)
    : tensors_(tensors), codecs_(codecs), old_ranks_(old_ranks), ranks_(ranks), rank_(rank) {
  require(old_ranks >= 1 && rank >= 0 && rank < ranks && codecs.size() == tensors.size(),
          "residuals are redistributed from at least one rank, with one codec per tensor");
  sums_.resize(tensors.size());
  round2_.resize(tensors.size());
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (!codecs[t].error_feedback) continue;
    sums_[t].resize(static_cast<std::size_t>(tensors[t].elements));
    const Stripe own = stripe_of(rank, tensors[t].elements, codecs[t].bucket.of(tensors[t]), ranks, t);
    round2_[t].resize(static_cast<std::size_t>(own.last - own.first));
  }
}

void Redistribution::add(const ExchangeState& old) {
  require(added_ < old_ranks_, "more residuals than old ranks");
  if (old.round1.size() != tensors_.size() || old.round2.size() != tensors_.size())
    throw Error(fmt::format("residuals of rank {}: {} and {} tensors where the network has {}", added_,
                            old.round1.size(), old.round2.size(), tensors_.size()));
  for (std::size_t t = 0; t < tensors_.size(); ++t)
    if (codecs_[t].error_feedback) add(t, old.round1[t], old.round2[t]);
  ++added_;
}

void Redistribution::add(std::size_t t, std::span<const float> round1, std::span<const float> round2) {
  const TensorInfo& tensor = tensors_[t];
  const std::int64_t bucket = codecs_[t].bucket.of(tensor);
  const auto check = [&](std::size_t size, std::size_t expected, const char* round) {
    if (size != expected)
      throw Error(fmt::format("residuals of rank {}: tensor {}: {} holds {} values, expected {}", added_,
                              tensor.name, round, size, expected));
  };
  check(round1.size(), sums_[t].size(), "round 1");
  for (std::size_t i = 0; i < round1.size(); ++i) sums_[t][i] += static_cast<double>(round1[i]);

  const Stripe theirs = stripe_of(added_, tensor.elements, bucket, old_ranks_, t);
  const Stripe mine = stripe_of(rank_, tensor.elements, bucket, ranks_, t);
  check(round2.size(), static_cast<std::size_t>(theirs.last - theirs.first), "round 2");
  const std::int64_t first = std::max(theirs.first, mine.first), last = std::min(theirs.last, mine.last);
  for (std::int64_t i = first; i < last; ++i)
    round2_[t][static_cast<std::size_t>(i - mine.first)] = round2[static_cast<std::size_t>(i - theirs.first)];
}

ExchangeState Redistribution::take() {
  require(added_ == old_ranks_, "residuals of fewer ranks than there were");
  ExchangeState out;
  for (std::vector<double>& sums : sums_) {
    std::vector<float>& mean = out.round1.emplace_back(sums.size());
    std::ranges::transform(sums, mean.begin(),
                           [&](double sum) { return static_cast<float>(sum / old_ranks_); });
    sums = {};
  }
  out.round2 = std::move(round2_);
  return out;
}

}  // namespace lpsgd
