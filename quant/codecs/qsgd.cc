// QSGD: stochastic rounding of v/norm to levels (quant/codecs/qsgd_device.h). Record: norm, then the codes.
#include "quant/codecs/qsgd_device.h"
#include "quant/cpu_scaled_inl.h"
#include "quant/level_table.h"

namespace lpsgd::LPSGD_ISA {
namespace {

/// Calls body(rule) with the rule of these options; `table` precedes the records.
template <class Body>
bool with_rule(const CodecOptions& options, const std::byte* table, bool encodes, Body body) {
  return with_qsgd_rule(options_of<QsgdOptions>(options), [&]<int width, QsgdOptions::Levels levels>() {
    if constexpr (levels == QsgdOptions::Levels::optimal) {
      LevelTable unpacked;
      unpacked.read(table, width);
      if (encodes) unpacked.fill(width);
      return body(QsgdRule<Lanes, width, levels>(&unpacked));
    } else {
      return body(QsgdRule<Lanes, width, levels>(nullptr));
    }
  });
}

bool encode(const CodecOptions& options, const CodingContext& context, const CodingJob& job) {
  return with_rule(options, job.table, true,
                   [&](const auto& rule) { return scaled_encode(rule, options, context, job); });
}

bool decode(const CodecOptions& options, const CodingJob& job, bool adds) {
  return with_rule(options, job.table, false,
                   [&](const auto& rule) { return scaled_decode(rule, options, job, adds); });
}

bool reduce(const CodecOptions& options, const CodingContext& context, const CodingJob& job, float* scratch) {
  return with_qsgd_rule(options_of<QsgdOptions>(options), [&]<int width, QsgdOptions::Levels levels>() {
    if constexpr (levels == QsgdOptions::Levels::optimal)
      return false;  // a codec with a table is reduced in parts
    else
      return scaled_reduce(QsgdRule<Lanes, width, levels>(nullptr), options, context, job, scratch);
  });
}

template <bool residuals>
void count_bucket(const float* values, const float* residual, std::int64_t m, float norm,
                  std::int64_t* counts) {
  const Divider<Lanes> by_norm(norm);
  for (std::int64_t at = 0; at < m; at += kBlock) {
    F v[kVectors];
    load_block<residuals>(values + at, advanced(residual, at), m - at, v);
    std::int32_t cells[kBlock];
    LPSGD_UNROLL for (int k = 0; k < kVectors; ++k)
        store(cells + k * kLanes, level_cell<Lanes>(by_norm(magnitude<Lanes>(v[k]))));
    const std::int64_t left = m - at < kBlock ? m - at : kBlock;
    for (std::int64_t i = 0; i < left; ++i) ++counts[cells[i]];
  }
}

/// The histogram of abs(v)/norm. Buckets with non-finite values, and those of norm 0, which any levels code
/// exactly, are left out.
void count(const CodecOptions& options, const CodingJob& job, std::int64_t* counts) {
  const Scale scale =
      options_of<QsgdOptions>(options).norm == QsgdOptions::Norm::l2 ? Scale::norm : Scale::max;
  const Scanner scan = scanner(scale, job.residual != nullptr);
  each_bucket(job, [&](std::int64_t begin, std::int64_t m) LPSGD_INLINED {
    const float* values = job.values + begin;
    const float* r = advanced(job.residual, begin);
    const float norm = scale_of(scale, scan(values, r, m), m);
    if (is_finite(norm) && norm != 0)
      (r ? count_bucket<true> : count_bucket<false>)(values, r, m, norm, counts);
    return true;
  });
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
  row.options = [](config::Visitor& v, CodecOptions& options) {
    auto& o = std::get<Options>(options);
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
  };
  row.more_defaults = [](CodecSpec& spec) {
    const auto bits = options_of<Options>(spec.options).bits;
    spec.bucket = bits == 2 ? 128 : bits == 16 ? 8192 : 512;
  };
  row.conflict = [](const CodecSpec& spec) -> std::optional<OptionConflict> {
    const auto& o = options_of<Options>(spec.options);
    if (o.bits <= 8 || o.levels < Options::Levels::exponential) return std::nullopt;
    return OptionConflict{"levels",
                          "exponential and optimal levels take at most 8 bits; allowed with 16: "
                          "sign_magnitude, interval"};
  };
  row.record_bytes = [](const CodecOptions& options, std::int64_t m) {
    return record_bytes(m, 1, options_of<Options>(options).bits);
  };
  row.table_bytes = [](const CodecOptions& options) -> std::int64_t {
    const auto& o = options_of<Options>(options);
    return o.levels == Options::Levels::optimal ? qsgd_levels(o.bits) + 1 : 0;
  };
  row.make_table = [](const CodecOptions& options, const std::int64_t* counts, std::byte* table) {
    const std::int32_t s = qsgd_levels(options_of<Options>(options).bits);
    std::int32_t levels[128];
    choose_levels(counts, s, levels);
    for (std::int32_t j = 0; j <= s; ++j) table[j] = static_cast<std::byte>(j == s ? 255 : levels[j]);
  };
  return row;
}

}  // namespace lpsgd
#endif
