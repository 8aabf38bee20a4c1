// QSGD: stochastic rounding of v/norm to levels (quant/codecs/qsgd_device.h). Record: norm, then the codes.
#include "quant/codecs/qsgd_device.h"
#include "quant/cpu_scaled_inl.h"
#include "quant/level_table.h"

namespace lpsgd::LPSGD_ISA {
namespace {

/// Rules of the four sets of levels.
template <int width>
struct SignMagnitude {
  static constexpr int bits = width;
  static constexpr bool dithered = true;
  float norm = 0, divisor = 1;
  LPSGD_INLINE void start(float scale) {
    norm = scale;
    divisor = qsgd_divisor(scale);
  }
  LPSGD_INLINE I code(F v, I half) const { return qsgd_code<Lanes>(v, divisor, half, bits); }
  LPSGD_INLINE F value(I code) const { return qsgd_value<Lanes>(code, norm, bits); }
};

template <int width>
struct Interval : SignMagnitude<width> {
  LPSGD_INLINE I code(F v, I half) const { return interval_code<Lanes>(v, this->norm, half, width); }
  LPSGD_INLINE F value(I code) const { return interval_value<Lanes>(code, this->norm, width); }
};

template <int width>
struct Exponential : SignMagnitude<width> {
  LPSGD_INLINE I code(F v, I half) const { return exponential_code<Lanes>(v, this->divisor, half, width); }
  LPSGD_INLINE F value(I code) const { return exponential_value<Lanes>(code, this->norm, width); }
};

template <int width>
struct Optimal : SignMagnitude<width> {
  const LevelTable* levels = nullptr;
  LPSGD_INLINE I code(F v, I half) const {
    return optimal_code<Lanes>(*levels, v, this->divisor, half, width);
  }
  LPSGD_INLINE F value(I code) const { return optimal_value<Lanes>(*levels, code, this->norm, width); }
};

/// Calls body(rule) with the rule of these options.
template <int width, class Body>
bool with_levels(const QsgdOptions& options, const std::byte* table, bool encodes, Body body) {
  switch (options.levels) {
    case QsgdOptions::Levels::sign_magnitude:
      return body(SignMagnitude<width>());
    case QsgdOptions::Levels::interval:
      return body(Interval<width>());
    case QsgdOptions::Levels::exponential:
      if constexpr (width <= 8) return body(Exponential<width>());
      break;
    case QsgdOptions::Levels::optimal:
      if constexpr (width <= 8) {
        if (table == nullptr) break;
        LevelTable levels;
        levels.read(table, width);
        if (encodes) levels.fill(width);
        Optimal<width> rule;
        rule.levels = &levels;
        return body(rule);
      }
  }
  return false;
}

template <class Body>
bool with_rule(const QsgdOptions& options, const std::byte* table, bool encodes, Body body) {
  switch (options.bits) {
    case 2:
      return with_levels<2>(options, table, encodes, body);
    case 4:
      return with_levels<4>(options, table, encodes, body);
    case 8:
      return with_levels<8>(options, table, encodes, body);
    default:
      return with_levels<16>(options, table, encodes, body);
  }
}

Scale scale_by(const QsgdOptions& options) {
  return options.norm == QsgdOptions::Norm::l2 ? Scale::norm : Scale::largest;
}

bool encode(const CodecSpec& spec, const std::byte* table, const float* values, float* residual,
            std::int64_t n, std::int64_t first, std::int64_t bucket, const CodingContext& context,
            std::byte* out) {
  const auto options = spec.options.get<QsgdOptions>();
  return with_rule(options, table, true, [&](auto rule) {
    return scaled_encode(rule, scale_by(options), values, residual, n, first, bucket, context, out);
  });
}

bool decode(const CodecSpec& spec, const std::byte* table, const std::byte* in, std::int64_t n,
            std::int64_t bucket, bool adds, float* out) {
  const auto options = spec.options.get<QsgdOptions>();
  return with_rule(options, table, false, [&](auto rule) {
    return scaled_decode(rule, scale_by(options), in, n, bucket, adds, out);
  });
}

bool reduce(const CodecSpec& spec, const std::byte* const* contributions, std::size_t ranks, float* residual,
            std::int64_t n, std::int64_t first, std::int64_t bucket, const CodingContext& context,
            float* scratch, std::byte* out) {
  const auto options = spec.options.get<QsgdOptions>();
  return with_rule(options, nullptr, false, [&](auto rule) {
    const auto reduce_scaled = options.norm == QsgdOptions::Norm::l2
                                   ? scaled_reduce<Scale::norm, decltype(rule)>
                                   : scaled_reduce<Scale::largest, decltype(rule)>;
    return reduce_scaled(rule, contributions, ranks, residual, n, first, bucket, context, scratch, out);
  });
}

template <bool residuals>
void count_bucket(const float* values, const float* residual, std::int64_t m, float norm,
                  std::int64_t* counts) {
  for (std::int64_t at = 0; at < m; at += kBlock) {
    F v[kVectors];
    load_block<residuals>(values + at, advanced(residual, at), m - at, v);
    std::int32_t cells[kBlock];
    LPSGD_UNROLL for (int k = 0; k < kVectors; ++k)
        store(cells + k * kLanes, level_cell<Lanes>(magnitude<Lanes>(v[k]) / norm));
    const std::int64_t left = m - at < kBlock ? m - at : kBlock;
    for (std::int64_t i = 0; i < left; ++i) ++counts[cells[i]];
  }
}

/// The histogram of abs(v)/norm. Buckets without numbers and those of norm 0, which any levels code exactly,
/// do not count.
void count(const CodecSpec& spec, const float* values, const float* residual, std::int64_t n,
           std::int64_t bucket, std::int64_t* counts) {
  const Scale scale = scale_by(spec.options.get<QsgdOptions>());
  const Scanner scan = scanner(scale, residual != nullptr);
  for (std::int64_t begin = 0; begin < n; begin += bucket) {
    const std::int64_t m = n - begin < bucket ? n - begin : bucket;
    const float* r = advanced(residual, begin);
    const float norm = scale_of(scale, scan(values + begin, r, m), m);
    if (!is_finite(norm) || norm == 0) continue;
    (r ? count_bucket<true> : count_bucket<false>)(values + begin, r, m, norm, counts);
  }
}

}  // namespace

CodecKernels qsgd_kernels() {
  return {.encode = encode, .decode = decode, .reduce = reduce, .count = count};
}

}  // namespace lpsgd::LPSGD_ISA

#ifdef LPSGD_CODEC_ROWS
namespace lpsgd {

CodecRow qsgd_row() {
  using Options = QsgdOptions;
  CodecRow row;
  row.defaults = CodecOptions::of(Options{});
  row.options = [](config::Visitor& v, CodecSpec& spec) {
    auto o = spec.options.get<Options>();
    v.choice<std::int32_t>("bits", o.bits, {{"2", 2}, {"4", 4}, {"8", 8}, {"16", 16}},
                           "bits per value; `bucket` is by default 128 with 2 bits, 8192 with 16, else 512");
    v.choice("norm", o.norm, {{"max", Options::Norm::max}, {"l2", Options::Norm::l2}},
             "a bucket's scale: its largest magnitude, or its 2-norm");
    v.choice("levels", o.levels,
             {{"sign_magnitude", Options::Levels::sign_magnitude},
              {"interval", Options::Levels::interval},
              {"exponential", Options::Levels::exponential},
              {"optimal", Options::Levels::optimal}},
             "how the levels that a value is rounded to are spread: docs/numerics.md; exponential and "
             "optimal take up to 8 bits");
    spec.options.set(o);
  };
  row.more_defaults = [](CodecSpec& spec) {
    const auto bits = spec.options.get<Options>().bits;
    spec.bucket = bits == 2 ? 128 : bits == 16 ? 8192 : 512;
  };
  row.conflict = [](const CodecSpec& spec) -> std::optional<OptionConflict> {
    const auto o = spec.options.get<Options>();
    if (o.bits <= 8 || o.levels < Options::Levels::exponential) return std::nullopt;
    return OptionConflict{"levels",
                          "exponential and optimal levels take at most 8 bits; allowed with 16: "
                          "sign_magnitude, interval"};
  };
  row.record_bytes = [](const CodecSpec& spec, std::int64_t m) {
    return record_bytes(m, 1, spec.options.get<Options>().bits);
  };
  row.table_bytes = [](const CodecSpec& spec) -> std::int64_t {
    const auto o = spec.options.get<Options>();
    return o.levels == Options::Levels::optimal ? qsgd_levels(o.bits) + 1 : 0;
  };
  row.make_table = [](const CodecSpec& spec, const std::int64_t* counts, std::byte* table) {
    const std::int32_t s = qsgd_levels(spec.options.get<Options>().bits);
    std::int32_t levels[128];
    choose_levels(counts, s, levels);
    for (std::int32_t j = 0; j <= s; ++j) table[j] = static_cast<std::byte>(j == s ? 255 : levels[j]);
  };
  return row;
}

}  // namespace lpsgd
#endif
