// Signs with a scale (EF-signSGD: Karimireddy et al. 2019, algorithm 1; signSGD with majority vote: Bernstein
// et al. 2018, algorithm 1): q_i = mean(abs(v)) * sign(v_i), the sign of 0 being plus. Record: the scale
// (none with `majority`, where it is 1), then bit i = (v_i >= 0).
#include "quant/scaled_codec_inl.h"

namespace lpsgd::LPSGD_ISA {
namespace {

template <class L>
struct Sign : ScaledRule<SignOptions> {
  using F = typename L::F;
  using I = typename L::I;
  static constexpr int bits = 1;
  static constexpr Scale scales[2] = {Scale::mean, Scale::none};
  LPSGD_HD static int scale_index(const SignOptions& options) { return options.majority; }

  bool majority = false;
  float scale = 1;
  LPSGD_HD explicit Sign(const SignOptions& options) : majority(options.majority) {}
  LPSGD_HD void start(float s) { scale = majority ? 1.0f : s; }
  LPSGD_HD I code(F v, I) const {
    const I zero = I{};
    return v >= 0.0f ? zero + 1 : zero;
  }
  LPSGD_HD F value(I code) const { return L::value((((code & 1) ^ 1) << 31) ^ ScalarLanes::bits(scale)); }
};

}  // namespace

CodecKernels sign_kernels() {
  return scaled_kernels<Sign>();
}

}  // namespace lpsgd::LPSGD_ISA

#ifdef LPSGD_CODEC_ROWS
namespace lpsgd {

CodecRow sign_row() {
  CodecRow row;
  row.bucket = BucketSize::tensor;
  row.options = [](config::Visitor& v, CodecOptions& options) {
    v.field("majority", std::get<SignOptions>(options).majority,
            "ranks vote on each sign; the scale is 1 and is not sent; not together with error_feedback");
  };
  row.more_defaults = [](CodecSpec& spec) {
    spec.error_feedback = !options_of<SignOptions>(spec.options).majority;
  };
  row.conflict = [](const CodecSpec& spec) -> std::optional<OptionConflict> {
    if (!spec.error_feedback || !options_of<SignOptions>(spec.options).majority) return std::nullopt;
    return OptionConflict{"majority",
                          "a vote has no scale to feed an error back with; it goes with "
                          "error_feedback: false alone"};
  };
  row.hides_non_finite = [](const CodecOptions& options) {
    return options_of<SignOptions>(options).majority;
  };
  row.record_bytes = [](const CodecOptions& options, std::int64_t m) {
    return record_bytes(m, options_of<SignOptions>(options).majority ? 0 : 1, 1);
  };
  return row;
}

}  // namespace lpsgd
#endif
