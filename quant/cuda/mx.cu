// mx (quant/codecs/mx.cc) on the device. A warp has tiles of 256 values, whatever the buckets: eight blocks,
// each of four lanes.
//
// Memory moved per value with codes of b bits, values 16 bytes at a time where addresses allow:
//   encode   4 + (b + 1/4)/8 bytes, 8 more with a residual
//   reduce   (ranks + 1)(b + 1/4)/8, 8 more with a residual
//   decode   4 + (b + 1/4)/8, adding to the old values 8 + (b + 1/4)/8
// A measured error reads the source and the codes again, or the values and the residual.
#include "quant/codecs/mx_device.h"
#include "quant/cuda/source_device.h"

namespace lpsgd::cuda {
namespace {

constexpr int kLanesOfBlock = static_cast<int>(mx_block) / kEach;
using MxLaunch = LaunchOf<MxOptions>;

/// Where eight values of a job lie in its encoding, in bytes.
struct Place {
  std::int64_t scale, codes;
  int scales_left;   // bytes of the bucket's scales from this one on, those that fill a word, too
  bool ends_scales;  // the block is the bucket's last one

  __device__ __forceinline__ Place(const Job& job, std::int64_t at, int bits) {
    const auto length = static_cast<std::uint64_t>(job.bucket), value = static_cast<std::uint64_t>(at);
    const bool shifts =
        (length & (length - 1)) == 0 && length <= 1u << 30;  // a division takes 40 instructions
    const std::uint64_t bucket = shifts ? value >> (31 - __clz(static_cast<int>(length))) : value / length;
    const std::int64_t begin = static_cast<std::int64_t>(bucket * length), in = at - begin;
    const std::int64_t m = min_of(job.bucket, job.n - begin), scale_bytes = mx_scale_bytes(m);
    const std::int64_t before =
        static_cast<std::int64_t>(bucket) * (mx_scale_bytes(job.bucket) + record_bytes(job.bucket, 0, bits));
    scale = before + in / mx_block;
    codes = before + scale_bytes + in * bits / 8;
    scales_left = static_cast<int>(min_of(scale_bytes - in / mx_block, 4));
    ends_scales = in + mx_block >= m;
  }
};

/// Decodes a lane's eight values, of which `left` > 0 exist; NaN if the block has no values. Returns whether
/// it has.
template <class M>
__device__ __forceinline__ bool decode_eight(const std::byte* encoding, const Place& place, int left,
                                             float* v) {
  const auto scale = static_cast<std::int32_t>(encoding[place.scale]);
  CodeWords<M::bits> codes;
  const int words = static_cast<int>(code_words(left < kEach ? left : kEach, M::bits));
  codes.load(Words(encoding + place.codes), words, 0);
  const bool has_values = M::has_values(scale);
  const float x = M::multiplier(scale);
#pragma unroll
  for (int k = 0; k < kEach; ++k) v[k] = has_values ? M::value(codes.code(k), x) : canonical_nan();
  return has_values;
}

/// What a job codes, without its residual: its own values, or the mean of its contributions.
template <class M>
__device__ __forceinline__ void load_source(const MxLaunch& launch, const Job& job, const Place& place,
                                            std::int64_t at, int left, float* v) {
  if (job.contributions == nullptr) return load_values(job.values + at, left, v);
#pragma unroll
  for (int k = 0; k < kEach; ++k) v[k] = 0;
  for (std::int32_t r = 0; r < job.ranks; ++r) {
    float q[kEach];
    decode_eight<M>(job.contributions[r], place, left, q);
#pragma unroll
    for (int k = 0; k < kEach; ++k) v[k] = r == 0 ? q[k] : v[k] + q[k];
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) v[k] = k < left ? v[k] * launch.weight : 0.0f;
}

template <class M>
__global__ void __launch_bounds__(kThreads) encode_mx_kernel(MxLaunch launch) {
  std::uint32_t step = 0;
  if constexpr (M::dithered) step = launch.step_at != nullptr ? *launch.step_at : launch.context.step;
  each_eight(launch, [&](const Job& job, std::int64_t at, int left) {
    float v[kEach] = {};
    const Place place(job, left > 0 ? at : 0, M::bits);
    if (left > 0) {
      load_source<M>(launch, job, place, at, left, v);
      if (job.residual != nullptr) {
        float residual[kEach];
        load_values(job.residual + at, left, residual);
#pragma unroll
        for (int k = 0; k < kEach; ++k) v[k] += residual[k];
      }
    }
    std::int32_t top = 0;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const std::int32_t bits = ScalarLanes::bits(v[k]) & magnitude_mask;
      top = bits > top ? bits : top;
    }
    const std::int32_t scale = M::scale_of(max_of(top, kLanesOfBlock));
    if (left <= 0) return;
    const bool has_values = scale != mx_nan;
    if (lane_number() % kLanesOfBlock == 0) {
      std::byte* const to = job.bytes + place.scale;
      to[0] = static_cast<std::byte>(scale);
      if (place.ends_scales)
        for (int i = 1; i < place.scales_left; ++i) to[i] = std::byte{0};
      if (!has_values) *job.non_finite = 1;
    }
    Philox4x32 draws{};
    if constexpr (M::dithered)
      draws = philox4x32(static_cast<std::uint32_t>((job.first + at) / kEach), job.tensor, step,
                         2 * launch.context.rank + launch.context.round - 1, launch.context.seed,
                         static_cast<std::uint32_t>(RandomUse::codec));
    CodeWords<M::bits> codes{};
    const float inverse = M::inverse(has_values ? scale : 0);
    codes.pack([&](int k) {
      return M::code(has_values ? v[k] : 0.0f, inverse, ScalarLanes::half_of(draws.x[k / 2], k));
    });
    codes.clear_from(left);
    std::byte* const to = job.bytes + place.codes;
    const int words = static_cast<int>(code_words(left < kEach ? left : kEach, M::bits));
#pragma unroll
    for (int w = 0; w < CodeWords<M::bits>::taken; ++w)
      if (w < words) store_word(to + 4 * w, codes.word[w]);
    if (job.residual == nullptr) return;
    const float x = M::multiplier(has_values ? scale : 0);
#pragma unroll
    for (int k = 0; k < kEach; ++k) v[k] = has_values ? v[k] - M::value(codes.code(k), x) : canonical_nan();
    store_values(job.residual + at, left, v);
  });
}

/// What encode lost, for jobs with an error sum.
template <class M>
__global__ void __launch_bounds__(kThreads) error_mx_kernel(MxLaunch launch) {
  each_eight(launch, [&](const Job& job, std::int64_t at, int left) {
    if (job.error == nullptr) return;
    double own = 0, lost = 0;
    if (left > 0) {
      const Place place(job, at, M::bits);
      float values[kEach] = {}, v[kEach];
      if (job.contributions == nullptr) load_values(job.values + at, left, values);
      if (job.residual != nullptr) {
        load_values(job.residual + at, left, v);
      } else {
        float q[kEach];
        load_source<M>(launch, job, place, at, left, v);
        decode_eight<M>(job.bytes, place, left, q);
#pragma unroll
        for (int k = 0; k < kEach; ++k) v[k] -= q[k];
      }
      add_squares(values, v, left, own, lost);
    }
    add_error(job.error, own, lost);
  });
}

template <class M, bool adds>
__global__ void __launch_bounds__(kThreads) decode_mx_kernel(MxLaunch launch) {
  each_eight(launch, [&](const Job& job, std::int64_t at, int left) {
    if (left <= 0) return;
    float q[kEach], v[kEach];
    const bool has_values = decode_eight<M>(job.bytes, Place(job, at, M::bits), left, q);
    if constexpr (adds) load_values(job.out + at, left, v);
    if (!has_values) *job.non_finite = 1;
#pragma unroll
    for (int k = 0; k < kEach; ++k) v[k] = adds ? add<ScalarLanes>(v[k], q[k]) : q[k];
    store_values(job.out + at, left, v);
  });
}

// ---- Launches

template <class M>
void encode_with(const MxLaunch& launch, cudaStream_t stream) {
  const auto kernel = encode_mx_kernel<M>;
  LPSGD_LAUNCH(kernel, blocks_for(launch.pieces), kThreads, stream)(launch);
  const auto measure = error_mx_kernel<M>;
  if (launch.errors) LPSGD_LAUNCH(measure, blocks_for(launch.pieces), kThreads, stream)(launch);
}

template <class M>
void decode_with(const MxLaunch& launch, bool adds, cudaStream_t stream) {
  const auto kernel = adds ? decode_mx_kernel<M, true> : decode_mx_kernel<M, false>;
  LPSGD_LAUNCH(kernel, blocks_for(launch.pieces), kThreads, stream)(launch);
}

void encode_mx(const Launch& launch, const CodecOptions& options, cudaStream_t stream) {
  if (launch.pieces == 0) return;
  const MxLaunch own{launch, options_of<MxOptions>(options)};
  with_mx<ScalarLanes>(own.options, [&](auto rules) { encode_with<decltype(rules)>(own, stream); });
}

void decode_mx(const Launch& launch, const CodecOptions& options, bool adds, cudaStream_t stream) {
  if (launch.pieces == 0) return;
  const MxLaunch own{launch, options_of<MxOptions>(options)};
  with_mx_blocks<ScalarLanes>(own.options,
                              [&](auto blocks) { decode_with<decltype(blocks)>(own, adds, stream); });
}

}  // namespace

CodecKernels mx_kernels() {
  return {.encode = encode_mx, .decode = decode_mx, .unit = CodecKernels::Unit::tile};
}

}  // namespace lpsgd::cuda
