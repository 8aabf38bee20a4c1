#include "trainer/bench/expectation.h"

#include <algorithm>

#include "trainer/bench/samples.h"

namespace lpsgd {

ExchangeExpectation::ExchangeExpectation(const CodecSpec& spec, std::int64_t n, int ranks,
                                         std::optional<int> alone)
    : codec_(make_codec(spec, bench_tensor(n))),
      n_(n),
      ranks_(ranks),
      alone_(alone),
      stripes_(stripes(n, codec_->bucket(), alone ? 1 : ranks, 0)),
      table_(codec_->table_bytes()),
      values_(static_cast<std::size_t>(n)) {
  std::size_t bytes = 0;
  for (const Stripe& s : stripes_) bytes = std::max(bytes, codec_->encoded_bytes(s.last - s.first));
  record_ = Buffer<std::byte>(bytes);
  if (!codec_->error_feedback()) return;
  for (int r = 0; r <= ranks; ++r) residuals_.emplace_back(static_cast<std::size_t>(n));
}

void ExchangeExpectation::step(std::uint32_t step, std::span<float> mean) {
  if (alone_) return contribute(step, *alone_, false, mean);
  for (int r = 0; r < ranks_; ++r) contribute(step, r, r > 0, mean);
  const float scale = 1.0f / static_cast<float>(ranks_);
  for (float& x : mean) x *= scale;
  if (codec_->spec().is_none()) return;
  for (const Stripe& s : stripes_)
    code(s, mean.data(), residual(ranks_), {seed, step, static_cast<std::uint32_t>(s.owner), 2}, nullptr,
         false, mean.data());
}

void ExchangeExpectation::contribute(std::uint32_t step, int rank, bool add, std::span<float> to) {
  const auto r = static_cast<std::uint32_t>(rank);
  fill_like_gradients(values_, r);
  if (codec_->spec().is_none()) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = add ? to[i] + values_[i] : values_[i];
    return;
  }
  CodingJob whole = codec_->job(0, n_);
  whole.values = values_.data();
  whole.residual = residual(rank);
  codec_->make_table(whole, table_.data());
  for (const Stripe& s : stripes_)
    code(s, values_.data(), residual(rank), {seed, step, r, 1}, table_.data(), add, to.data());
}

void ExchangeExpectation::code(const Stripe& s, const float* from, float* left, const CodingContext& context,
                               const std::byte* table, bool add, float* to) {
  CodingJob job = codec_->job(s.first, s.last - s.first);
  job.values = from + s.first;
  job.residual = left ? left + s.first : nullptr;
  job.table = table;
  job.bytes = record_.data();
  job.out = to + s.first;
  codec_->encode(job, context);
  codec_->decode(job, add);
}

float* ExchangeExpectation::residual(int rank) {
  return residuals_.empty() ? nullptr : residuals_[static_cast<std::size_t>(rank)].data();
}

}  // namespace lpsgd
