// Signs with a scale (EF-signSGD: Karimireddy et al. 2019, algorithm 1; signSGD with majority vote: Bernstein
// et al. 2018, algorithm 1): q_i = mean(abs(v)) * sign(v_i), the sign of 0 being plus. Record: the scale
// (none with `majority`, where it is 1), then bit i = (v_i >= 0).
#include "quant/codecs/sign_device.h"
#include "quant/cpu_scaled_inl.h"

namespace lpsgd::LPSGD_ISA {
namespace {

struct Sign {
  static constexpr int bits = 1;
  static constexpr bool dithered = false;
  bool majority = false;
  float scale = 1;
  LPSGD_INLINE void start(float s) { scale = majority ? 1.0f : s; }
  LPSGD_INLINE I code(F v, I) const { return sign_code<Lanes>(v); }
  LPSGD_INLINE F value(I code) const { return sign_value<Lanes>(code, scale); }
};

bool encode(const CodecSpec& spec, const std::byte*, const float* values, float* residual, std::int64_t n,
            std::int64_t first, std::int64_t bucket, const CodingContext& context, std::byte* out) {
  const bool majority = spec.options.get<SignOptions>().majority;
  return scaled_encode(Sign{majority}, majority ? Scale::none : Scale::mean, values, residual, n, first,
                       bucket, context, out);
}

bool decode(const CodecSpec& spec, const std::byte*, const std::byte* in, std::int64_t n, std::int64_t bucket,
            bool adds, float* out) {
  const bool majority = spec.options.get<SignOptions>().majority;
  return scaled_decode(Sign{majority}, majority ? Scale::none : Scale::mean, in, n, bucket, adds, out);
}

bool reduce(const CodecSpec& spec, const std::byte* const* contributions, std::size_t ranks, float* residual,
            std::int64_t n, std::int64_t first, std::int64_t bucket, const CodingContext& context,
            float* scratch, std::byte* out) {
  const bool majority = spec.options.get<SignOptions>().majority;
  const auto reduce_scaled = majority ? scaled_reduce<Scale::none, Sign> : scaled_reduce<Scale::mean, Sign>;
  return reduce_scaled(Sign{majority}, contributions, ranks, residual, n, first, bucket, context, scratch,
                       out);
}

}  // namespace

CodecKernels sign_kernels() {
  return {.encode = encode, .decode = decode, .reduce = reduce};
}

}  // namespace lpsgd::LPSGD_ISA

#ifdef LPSGD_CODEC_ROWS
namespace lpsgd {

CodecRow sign_row() {
  CodecRow row;
  row.bucket = CodecSpec::whole_tensor;
  row.defaults = CodecOptions::of(SignOptions{});
  row.options = [](config::Visitor& v, CodecSpec& spec) {
    auto o = spec.options.get<SignOptions>();
    v.field("majority", o.majority,
            "ranks vote on each sign; the scale is 1 and is not sent; not together with error_feedback");
    spec.options.set(o);
  };
  row.more_defaults = [](CodecSpec& spec) {
    spec.error_feedback = !spec.options.get<SignOptions>().majority;
  };
  row.conflict = [](const CodecSpec& spec) -> std::optional<OptionConflict> {
    if (!spec.error_feedback || !spec.options.get<SignOptions>().majority) return std::nullopt;
    return OptionConflict{"majority",
                          "a vote has no scale to feed an error back with; it goes with "
                          "error_feedback: false alone"};
  };
  row.hides_non_finite = [](const CodecSpec& spec) { return spec.options.get<SignOptions>().majority; };
  row.record_bytes = [](const CodecSpec& spec, std::int64_t m) {
    return record_bytes(m, spec.options.get<SignOptions>().majority ? 0 : 1, 1);
  };
  return row;
}

}  // namespace lpsgd
#endif
