// qsgd on the device. Optimal levels are counted and chosen before anything is encoded, without the host.
#include "quant/cuda/qsgd_device.h"

namespace lpsgd::cuda {
namespace {

template <class Rule>
cudaError_t encode_with(const Launch& launch, cudaStream_t stream) {
  if constexpr (Rule::tabled) {
    if (launch.pieces == 0) return cudaSuccess;
    const std::int32_t tables = launch.table_count;
    const cudaError_t cleared = cudaMemsetAsync(
        launch.counts, 0, static_cast<std::size_t>(tables) * LevelTable::cells * sizeof(*launch.counts),
        stream);
    if (cleared != cudaSuccess) return cleared;
    if (launch.large) scan_buckets<Rule>(launch, stream);
    const auto count = count_kernel<Rule>;
    LPSGD_LAUNCH(count, blocks_for(launch.pieces), kThreads, stream)(launch);
    const cudaError_t chosen = choose_level_tables(launch, tables, stream);
    if (chosen != cudaSuccess) return chosen;
  }
  return encode_scaled<Rule>(launch, stream);
}

}  // namespace

cudaError_t encode_qsgd(const Launch& launch, cudaStream_t stream) {
  return with_rule(launch,
                   [&](auto tag) { return encode_with<typename decltype(tag)::type>(launch, stream); });
}
cudaError_t decode_qsgd(const Launch& launch, bool adds, cudaStream_t stream) {
  return with_rule(
      launch, [&](auto tag) { return decode_scaled<typename decltype(tag)::type>(launch, adds, stream); });
}

}  // namespace lpsgd::cuda
