// The rules of qsgd (quant/codecs/qsgd.cc) on the device. Internal to quant/cuda: qsgd.cu and qsgd_tables.cu.
#pragma once

#include "quant/cuda/scaled_device.h"

namespace lpsgd::cuda {
namespace {

template <int width, QsgdOptions::Levels levels>
struct QsgdRule {
  using Levels = QsgdOptions::Levels;
  static constexpr int bits = width;
  static constexpr bool dithered = true;
  static constexpr bool tabled = levels == Levels::optimal;
  const LevelTable* cells;  // for encoding with a table
  const std::byte* table;   // for decoding: its bytes, before the records
  float norm = 0, divisor = 1;
  __device__ QsgdRule(const Launch& launch, const Job& job, const std::byte* encoding)
      : cells(launch.tables == nullptr ? nullptr : &launch.tables[job.table].levels), table(encoding) {}
  __device__ static constexpr int table_bytes() { return tabled ? qsgd_levels(width) + 1 : 0; }
  __device__ static Statistic statistic(const Launch& launch) {
    return launch.qsgd.norm == QsgdOptions::Norm::l2 ? Statistic::norm : Statistic::largest;
  }
  __device__ static int scale_count(const Launch&) { return 1; }
  __device__ void start(Scales s) {
    norm = s.a;
    divisor = qsgd_divisor(s.a);
  }
  __device__ std::int32_t code(float v, std::int32_t half) const {
    if constexpr (levels == Levels::interval)
      return interval_code<ScalarLanes>(v, norm, half, width);
    else if constexpr (levels == Levels::exponential)
      return exponential_code<ScalarLanes>(v, divisor, half, width);
    else if constexpr (levels == Levels::optimal)
      return optimal_code<ScalarLanes>(*cells, v, divisor, half, width);
    else
      return qsgd_code<ScalarLanes>(v, divisor, half, width);
  }
  __device__ float value(std::int32_t code) const {
    if constexpr (levels == Levels::interval) {
      return interval_value<ScalarLanes>(code, norm, width);
    } else if constexpr (levels == Levels::exponential) {
      return exponential_value<ScalarLanes>(code, norm, width);
    } else if constexpr (levels == Levels::optimal) {
      const std::int32_t level = code & qsgd_levels(width);
      const float fraction = level == qsgd_levels(width) ? 1.0f
                             : table == nullptr
                                 ? cells->level[level]
                                 : static_cast<float>(static_cast<std::uint8_t>(table[level])) * 0x1p-8f;
      return qsgd_scaled<ScalarLanes>(fraction, code, norm, width);
    } else {
      return qsgd_value<ScalarLanes>(code, norm, width);
    }
  }
};

template <class Rule>
struct Tag {
  using type = Rule;
};

template <int width, class Use>
cudaError_t with_levels(const Launch& launch, Use use) {
  using Levels = QsgdOptions::Levels;
  switch (launch.qsgd.levels) {
    case Levels::interval:
      return use(Tag<QsgdRule<width, Levels::interval>>());
    case Levels::exponential:
      if constexpr (width <= 8) return use(Tag<QsgdRule<width, Levels::exponential>>());
      return cudaErrorInvalidValue;
    case Levels::optimal:
      if constexpr (width <= 8) return use(Tag<QsgdRule<width, Levels::optimal>>());
      return cudaErrorInvalidValue;
    default:
      return use(Tag<QsgdRule<width, Levels::sign_magnitude>>());
  }
}

/// Calls use(tag) with the rule that the launch names.
template <class Use>
cudaError_t with_rule(const Launch& launch, Use use) {
  switch (launch.qsgd.bits) {
    case 2:
      return with_levels<2>(launch, use);
    case 4:
      return with_levels<4>(launch, use);
    case 8:
      return with_levels<8>(launch, use);
    default:
      return with_levels<16>(launch, use);
  }
}

}  // namespace
}  // namespace lpsgd::cuda
