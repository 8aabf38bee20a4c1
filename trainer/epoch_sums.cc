#include "trainer/epoch_sums.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <initializer_list>
#include <numeric>
#include <utility>

namespace lpsgd {

namespace {

/// Sums of counts within this range overflow nowhere.
void check_counts(std::size_t rank, std::initializer_list<std::int64_t> counts) {
  for (const std::int64_t count : counts)
    if (count < 0 || count > std::int64_t{1} << 48)
      throw impossible(rank, fmt::format("the count {}", count));
}

struct LocalSums {
  Deviation distance;
  std::uint64_t bytes_average = 0;
};

std::int64_t sum_over_ranks(Transport& transport, std::int64_t mine) {
  const std::vector<std::int64_t> all = transport.all_gather(mine);
  for (std::size_t r = 0; r < all.size(); ++r) check_counts(r, {all[r]});
  return std::accumulate(all.begin(), all.end(), std::int64_t{0});
}

std::vector<CodingError> sum_over_ranks(Transport& transport, const std::vector<CodingError>& mine) {
  std::vector<CodingError> all(mine.size() * static_cast<std::size_t>(transport.size()));
  transport.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  std::vector<CodingError> sum(mine.size());
  for (std::size_t i = 0; i < all.size(); ++i) sum[i % mine.size()].add(all[i]);
  return sum;
}

}  // namespace

BatchMetrics& operator+=(BatchMetrics& sum, const BatchMetrics& more) {
  sum.loss += more.loss;
  sum.top1 += more.top1;
  sum.top5 += more.top5;
  sum.samples += more.samples;
  return sum;
}

BatchMetrics sum(const std::vector<BatchMetrics>& parts) {
  BatchMetrics sum;
  for (const BatchMetrics& one : parts) sum += one;
  return sum;
}

std::vector<BatchMetrics> of_all_ranks(Transport& transport, const BatchMetrics& mine) {
  std::vector<BatchMetrics> all = transport.all_gather(mine);
  for (std::size_t r = 0; r < all.size(); ++r) check_counts(r, {all[r].top1, all[r].top5, all[r].samples});
  return all;
}

void EpochSums::resume(EpochSoFar so_far, int rank, bool other_ranks) {
  carried_ = std::move(so_far);
  const auto mine = static_cast<std::size_t>(rank);
  if (other_ranks)
    train_ = rank == 0 ? sum(carried_.train) : BatchMetrics{};
  else if (mine < carried_.train.size())
    train_ = carried_.train[mine];
}

void EpochSums::add(const StepMetrics& metrics) {
  train_ += metrics.batches;
  sequences_ += metrics.sequences;
  seconds_ += metrics.seconds;
  bytes_sent_ += metrics.bytes_sent;
  bytes_between_ += metrics.bytes_between;
  bytes_fp32_ += metrics.bytes_fp32;
  exchanges_ += metrics.exchanges;
  distance_.deviation += metrics.distance.deviation;
  distance_.change += metrics.distance.change;
  bytes_average_ += metrics.bytes_average;
  bad_ += metrics.bad_samples;
}

EpochSoFar EpochSums::so_far(Transport& transport, double now) const {
  EpochSoFar out = carried_;
  out.train = of_all_ranks(transport, train_);
  Seconds mine = seconds_;
  mine.total = now - started_;
  out.seconds += over_ranks(transport, mine);
  out.sequences +=
      {sum_over_ranks(transport, sequences_.sequences), sum_over_ranks(transport, sequences_.room)};
  for (const auto& [sent, between] : transport.all_gather(std::array{bytes_sent_, bytes_between_})) {
    out.bytes_sent += sent;
    out.bytes_between += between;
  }
  out.bytes_fp32 += bytes_fp32_;
  out.exchanges += exchanges_;
  for (const LocalSums& one : transport.all_gather(LocalSums{distance_, bytes_average_})) {
    out.distance.deviation += one.distance.deviation / transport.size();
    out.distance.change += one.distance.change / transport.size();
    out.bytes_average += one.bytes_average;
  }
  out.bad_samples += sum_over_ranks(transport, bad_.count);
  return out;
}

std::vector<TensorCoding> EpochSums::coding(Transport& transport,
                                            const std::vector<TensorInfo>& tensors) const {
  if (errors_.empty()) return {};
  const std::vector<CodingError> sums = sum_over_ranks(transport, errors_);
  std::vector<TensorCoding> out;
  for (std::size_t t = 0; t < sums.size(); ++t) {
    const CodingError& sum = sums[t];
    // What travels as float32 loses nothing, and is not measured everywhere.
    const bool is_exact = sum.exchanges > 0 && sum.exchanges == sum.float32;
    const auto coded = static_cast<double>(sum.exchanges - sum.float32);
    out.push_back({tensors[t].name, is_exact ? 0.0 : std::sqrt(sum.error / sum.gradient),
                   is_exact ? 0.0 : std::sqrt(sum.residual / coded), sum.bytes});
  }
  return out;
}

void EpochSums::clear() {
  carried_ = {};
  train_ = {};
  sequences_ = {};
  seconds_ = {};
  bytes_sent_ = bytes_fp32_ = bytes_between_ = bytes_average_ = 0;
  exchanges_ = 0;
  distance_ = {};
  bad_ = {};
  errors_.assign(errors_.size(), {});
}

}  // namespace lpsgd
