// Sizes on the wire, and residuals when the number of ranks changes.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "comm/exchange.h"
#include "comm/exchange_plan.h"
#include "comm/exchange_tensor.h"
#include "core/error.h"

namespace lpsgd {

std::uint64_t wire_bytes(const TensorInfo& tensor, const CodecSpec& codec, int ranks) {
  return encoded_bytes_of_stripes(*make_codec(codec, tensor), tensor.elements, ranks);
}

ResidualSizes residual_sizes(const TensorInfo& tensor, const CodecSpec& codec, std::size_t number,
                             const ResidualLayout& layout, int rank) {
  if (!codec.error_feedback) return {};
  const std::int64_t bucket = codec.bucket.of(tensor);
  const auto values = [](const Stripe& stripe) {
    return static_cast<std::size_t>(stripe.last - stripe.first);
  };
  ResidualSizes sizes;
  for (const Stripe& s : encoded_stripes(tensor.elements, bucket, layout.ranks, rank, number))
    sizes.round1 += values(s);
  if (layout.has_round2)
    sizes.round2 = values(stripe_of(rank, tensor.elements, bucket, layout.ranks.ranks, number));
  return sizes;
}

Redistribution::Redistribution(const std::vector<TensorInfo>& tensors, const std::vector<CodecSpec>& codecs,
                               const RankBlocks& old_ranks, const ResidualLayout& now, int rank)
    : tensors_(tensors), codecs_(codecs), old_ranks_(old_ranks), now_(now), rank_(rank) {
  require(old_ranks.ranks >= 1 && rank >= 0 && rank < now.ranks.ranks && codecs.size() == tensors.size(),
          "residuals are redistributed from at least one rank, with one codec per tensor");
  sums_.resize(tensors.size());
  round2_.resize(tensors.size());
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (!codecs[t].error_feedback) continue;
    sums_[t].resize(static_cast<std::size_t>(tensors[t].elements));
    round2_[t].resize(residual_sizes(tensors[t], codecs[t], t, now, rank).round2);
  }
}

void Redistribution::add(const ExchangeState& old) {
  require(added_ < old_ranks_.ranks, "more residuals than old ranks");
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
  const ResidualSizes sizes = residual_sizes(tensor, codecs_[t], t, {old_ranks_}, added_);
  check(round1.size(), sizes.round1, "round 1");
  auto from = round1.begin();
  for (const Stripe& stripe : encoded_stripes(tensor.elements, bucket, old_ranks_, added_, t))
    for (std::int64_t i = stripe.first; i < stripe.last; ++i)
      sums_[t][static_cast<std::size_t>(i)] += static_cast<double>(*from++);

  if (round2.empty() || !now_.has_round2) return;
  check(round2.size(), sizes.round2, "round 2");
  const Stripe theirs = stripe_of(added_, tensor.elements, bucket, old_ranks_.ranks, t);
  const Stripe mine = stripe_of(rank_, tensor.elements, bucket, now_.ranks.ranks, t);
  const std::int64_t first = std::max(theirs.first, mine.first), last = std::min(theirs.last, mine.last);
  for (std::int64_t i = first; i < last; ++i)
    round2_[t][static_cast<std::size_t>(i - mine.first)] = round2[static_cast<std::size_t>(i - theirs.first)];
}

ExchangeState Redistribution::take() {
  require(added_ == old_ranks_.ranks, "residuals of fewer ranks than there were");
  ExchangeState out;
  for (std::size_t t = 0; t < sums_.size(); ++t) {
    std::vector<float>& mean = out.round1.emplace_back();
    std::vector<double> sums = std::exchange(sums_[t], {});
    if (sums.empty()) continue;
    for (const Stripe& stripe :
         encoded_stripes(tensors_[t].elements, codecs_[t].bucket.of(tensors_[t]), now_.ranks, rank_, t))
      for (std::int64_t i = stripe.first; i < stripe.last; ++i)
        mean.push_back(static_cast<float>(sums[static_cast<std::size_t>(i)] / old_ranks_.count()));
  }
  out.round2 = std::move(round2_);
  return out;
}

bool fit_round2(ExchangeState& residuals, const std::vector<TensorInfo>& tensors,
                const std::vector<CodecSpec>& codecs, const ResidualLayout& layout, int rank) {
  bool any = false;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (!codecs[t].error_feedback) continue;
    const std::size_t kept = residual_sizes(tensors[t], codecs[t], t, layout, rank).round2;
    std::vector<float>& round2 = residuals.round2[t];
    if (round2.empty() == (kept == 0)) continue;
    round2.assign(kept, 0.0f);
    any = true;
  }
  return any;
}

}  // namespace lpsgd
