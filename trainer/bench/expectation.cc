#include "trainer/bench/expectation.h"

#include <algorithm>

#include "trainer/bench/samples.h"

namespace lpsgd {

ExchangeExpectation::ExchangeExpectation(const CodecSpec& spec, std::int64_t n, int ranks,
                                         std::optional<int> alone)
    : codec_(make_codec(spec)),
      n_(n),
      ranks_(ranks),
      alone_(alone),
      bucket_(codec_->bucket(bench_tensor(n))),
      stripes_(stripes(n, bucket_, alone ? 1 : ranks, 0)),
      table_(codec_->table_bytes()),
      values_(static_cast<std::size_t>(n)) {
  std::size_t bytes = 0;
  for (const Stripe& s : stripes_) bytes = std::max(bytes, codec_->encoded_bytes(s.last - s.first, bucket_));
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
    code(s, mean.data(), residual(ranks_), {seed, 0, step, static_cast<std::uint32_t>(s.owner), 2, nullptr},
         false, mean.data());
}

void ExchangeExpectation::contribute(std::uint32_t step, int rank, bool add, std::span<float> to) {
  const auto r = static_cast<std::uint32_t>(rank);
  fill_like_gradients(values_, r);
  if (codec_->spec().is_none()) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = add ? to[i] + values_[i] : values_[i];
    return;
  }
  codec_->make_table(values_.data(), residual(rank), n_, bucket_, table_.data());
  const std::byte* table = table_.empty() ? nullptr : table_.data();
  for (const Stripe& s : stripes_)
    code(s, values_.data(), residual(rank), {seed, 0, step, r, 1, table}, add, to.data());
}

void ExchangeExpectation::code(const Stripe& s, const float* from, float* left, const CodingContext& context,
                               bool add, float* to) {
  const std::int64_t n = s.last - s.first;
  if (n == 0) return;
  codec_->encode(from + s.first, left ? left + s.first : nullptr, n, s.first, bucket_, context,
                 record_.data());
  codec_->decode(record_.data(), n, bucket_, add, to + s.first);
}

float* ExchangeExpectation::residual(int rank) {
  return residuals_.empty() ? nullptr : residuals_[static_cast<std::size_t>(rank)].data();
}

}  // namespace lpsgd
