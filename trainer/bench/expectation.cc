#include "trainer/bench/expectation.h"

#include <algorithm>

#include "trainer/bench/samples.h"

namespace lpsgd {

ExchangeExpectation::ExchangeExpectation(const CodecSpec& spec, std::int64_t n, const RankBlocks& ranks,
                                         std::optional<int> alone)
    : codec_(make_codec(spec, bench_tensor(n))),
      n_(n),
      blocks_(ranks),
      alone_(alone),
      stripes_(stripes(n, codec_->bucket(), alone ? 1 : ranks.ranks, 0)),
      table_(codec_->table_bytes()),
      values_(static_cast<std::size_t>(n)),
      more_(ranks.size > 1 ? static_cast<std::size_t>(n) : 0) {
  std::size_t bytes = 0;
  for (const Stripe& s : stripes_) bytes = std::max(bytes, codec_->encoded_bytes(s.last - s.first));
  record_ = Buffer<std::byte>(bytes);
  if (!codec_->error_feedback()) return;
  for (int b = 0; b <= ranks.count(); ++b) residuals_.emplace_back(static_cast<std::size_t>(n));
}

void ExchangeExpectation::step(std::uint32_t step, std::span<float> mean) {
  if (alone_) return contribute(step, *alone_, false, mean);
  for (int b = 0; b < blocks_.count(); ++b) contribute(step, b, b > 0, mean);
  const float scale = 1.0f / static_cast<float>(blocks_.count());
  for (float& x : mean) x *= scale;
  if (codec_->spec().is_none()) return;
  for (const Stripe& s : stripes_)
    code(s, mean.data(), residual(blocks_.count()), {seed, step, static_cast<std::uint32_t>(s.owner), 2},
         nullptr, false, mean.data());
}

void ExchangeExpectation::contribute(std::uint32_t step, int block, bool add, std::span<float> to) {
  fill_like_gradients(values_, static_cast<std::uint32_t>(blocks_.rank_at(block, 0)));
  for (int place = 1; place < blocks_.size; ++place) {
    fill_like_gradients(more_, static_cast<std::uint32_t>(blocks_.rank_at(block, place)));
    for (std::size_t i = 0; i < to.size(); ++i) values_[i] += more_[i];
  }
  if (blocks_.size > 1)
    for (float& value : values_) value *= 1.0f / static_cast<float>(blocks_.size);
  if (codec_->spec().is_none()) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = add ? to[i] + values_[i] : values_[i];
    return;
  }
  CodingJob whole = codec_->job(0, n_);
  whole.values = values_.data();
  whole.residual = residual(block);
  codec_->make_table(whole, table_.data());
  for (const Stripe& s : stripes_) {
    const int rank = alone_ ? block : blocks_.rank_at(block, blocks_.place_of(s.owner));
    code(s, values_.data(), residual(block), {seed, step, static_cast<std::uint32_t>(rank), 1},
         blocks_.size > 1 ? nullptr : table_.data(), add, to.data());
  }
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

float* ExchangeExpectation::residual(int block) {
  return residuals_.empty() ? nullptr : residuals_[static_cast<std::size_t>(block)].data();
}

}  // namespace lpsgd
