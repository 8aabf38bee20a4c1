// Coding values whose scale is known, for codecs that are a rule (quant/scaled_rule_device.h). Internal to
// quant.
#pragma once

#include "quant/cuda/source_device.h"

namespace lpsgd::cuda {
namespace {

/// One lane's part of a piece: its rule and its code words.
template <class Rule, class E>
class Encoder {
 public:
  /// `first`: the warp has the bucket's first values. All lanes call it.
  __device__ __forceinline__ Encoder(const LaunchFor<Rule>& launch, const E& extent, std::uint32_t step,
                                     Scales scales, bool first, float* tile)
      : launch_(launch),
        finite_(are_finite(scales)),
        rule_(make_rule<Rule>(launch, extent.job, nullptr)),
        tile_(reinterpret_cast<std::uint32_t*>(tile)),
        width_(extent.width),
        tensor_(extent.job.tensor),
        step_(step),
        counter_(static_cast<std::uint32_t>((extent.job.first + extent.first()) / kEach)),
        residual_(extent.job.residual != nullptr ? extent.job.residual + extent.first() : nullptr) {
    const Job& job = extent.job;
    const int scale_count = count_scales<Rule>(launch);
    std::byte* record = job.bytes + Rule::table_bytes + extent.record;
    words_ = record + 4 * codes_at<Rule>(launch, extent);
    word_count_ = word_count<Rule>(extent);
    if (first) write_table(extent);
    if (first && extent.m > 0 && extent.lane() == 0) {
      if (scale_count > 0) store_float<E::whole>(record, finite_ ? scales.a : canonical_nan());
      if (scale_count > 1) store_float<E::whole>(record + 4, finite_ ? scales.b : canonical_nan());
      if (!finite_) *job.non_finite = 1;
    }
    start(rule_, finite_ ? scales : Scales{1, 1});
  }

  /// Codes the lane's eight values, from value `at` of the piece, of which `left` exist. All lanes call it.
  __device__ __forceinline__ void code(float* v, int at, int left) {
    CodeWords<Rule::bits> words{};
    const Halves draws = Rule::dithered ? draw(at) : Halves{};
    if constexpr (Rule::has_levels) {
      if (finite_) words.pack_levels(v, [&](int k) { return rule_.level(v[k], draws.half(k)); });
    } else {  // code() may need all lanes
      words.pack([&](int k) { return rule_.code(finite_ ? v[k] : 0.0f, draws.half(k)); });
      if (!finite_) words.clear_from(0);
    }
    if (!E::whole && left < kEach) words.clear_from(left);
    store_codes<Rule::bits, E::whole>(words_, word_count_, at, width_, words, tile_);
    if (residual_ == nullptr || (!E::whole && left <= 0)) return;
    if (finite_) {
#pragma unroll
      for (int k = 0; k < kEach; ++k) v[k] -= rule_.value(words.code(k));
    } else {
#pragma unroll
      for (int k = 0; k < kEach; ++k) v[k] = canonical_nan();
    }
    store_values<E::whole>(residual_ + at, left, v);
  }

 private:
  struct Halves {
    Philox4x32 block{};
    __device__ __forceinline__ std::int32_t half(int k) const {
      return ScalarLanes::half_of(block.x[k / 2], k);
    }
  };
  /// The dither of the lane's values.
  __device__ __forceinline__ Halves draw(int at) const {
    return {philox4x32(counter_ + static_cast<std::uint32_t>(at / kEach), tensor_, step_,
                       2 * launch_.context.rank + launch_.context.round - 1, launch_.context.seed,
                       static_cast<std::uint32_t>(RandomUse::codec))};
  }

  /// A table before the job's records, by the warp that has its first bucket.
  __device__ void write_table(const E& extent) const {
    if (Rule::table_bytes == 0 || extent.job.n == 0) return;
    if (__ballot_sync(kAll, extent.begin == 0 && lane_number() < extent.width) == 0) return;
    for (int i = lane_number(); i < Rule::table_bytes; i += kWarp)
      extent.job.bytes[i] = static_cast<std::byte>(launch_.tables[extent.job.table_number].bytes[i]);
  }

  const LaunchFor<Rule>& launch_;
  const bool finite_;
  Rule rule_;
  std::uint32_t* tile_;
  const int width_;
  const std::uint32_t tensor_, step_, counter_;  // of the dither
  float* residual_;                              // of the piece; nullptr: none
  std::byte* words_ = nullptr;
  int word_count_ = 0;
};

}  // namespace
}  // namespace lpsgd::cuda
