#include "quant/cuda/cuda_codec.h"

#include <algorithm>
#include <map>

#include "core/cuda/check.h"
#include "core/error.h"
#include "quant/codec_table.h"

namespace lpsgd {
namespace {

bool allows_wide_access(const CodingJob& job, std::int64_t table) {
  const auto is_multiple = [](const void* address, std::uintptr_t of) {
    return reinterpret_cast<std::uintptr_t>(address) % of == 0;
  };
  return is_multiple(job.values, 16) && is_multiple(job.residual, 16) && is_multiple(job.bytes + table, 4) &&
         std::all_of(job.contributions, job.contributions + job.ranks,
                     [&](const std::byte* encoding) { return is_multiple(encoding + table, 4); });
}

}  // namespace

using Unit = cuda::CodecKernels::Unit;

CudaBatch::CudaBatch(const CodecSpec& spec, Device device, std::span<const CodingJob> jobs, Tables tables)
    : device_(device), options_(spec.options), kernels_(codec_entry(spec.kind).cuda()), ignored_(device, 1) {
  const Stream stream(device);
  const auto put = [&]<class T>(DeviceBuffer<T>& to, std::span<const T> from) {
    to = DeviceBuffer<T>(device, from.size());
    copy_bytes(to.data(), from.data(), from.size_bytes(), stream);
  };
  const std::int32_t ranks = jobs.empty() ? 0 : jobs[0].ranks;
  all_.ranks = ranks;
  if (ranks > 0) all_.weight = 1.0f / static_cast<float>(ranks);
  std::vector<const std::byte*> contributions;
  for (const CodingJob& job : jobs) {
    require(job.ranks == ranks, "the jobs of one reduction come from different numbers of ranks");
    contributions.insert(contributions.end(), job.contributions, job.contributions + ranks);
  }
  put(contributions_, std::span<const std::byte* const>(contributions));
  if (kernels_.constants) {
    put(constants_, kernels_.constants(options_));
    all_.constants = constants_.data();
  }
  const std::int64_t table = jobs.empty() ? 0 : Codec(spec, jobs[0].bucket).table_bytes();
  const std::vector<cuda::Job> numbered = number(jobs, table, tables);
  put(jobs_, std::span<const cuda::Job>(numbered));
  all_.jobs = jobs_.data();
  all_.multiprocessors = cuda_device_info(device.index).multiprocessors;
  all_.job_last = static_cast<std::int32_t>(numbered.size());
  if (all_.large) {
    scans_ = DeviceBuffer<cuda::PieceScan>(device, static_cast<std::size_t>(all_.pieces));
    scales_ = DeviceBuffer<cuda::Scales>(device, static_cast<std::size_t>(all_.buckets));
    all_.scans = scans_.data();
    all_.scales = scales_.data();
    scanned_ = DeviceBuffer<std::uint32_t>(device, static_cast<std::size_t>(all_.buckets));
    zero_bytes(scanned_.data(), scanned_.size() * sizeof(std::uint32_t), stream);
    all_.scanned = scanned_.data();
  }
  const auto has_values = [](const CodingJob& job) { return job.values != nullptr; };
  const bool encodes = ranks > 0 || std::any_of(jobs.begin(), jobs.end(), has_values);
  if (encodes && table > 0) {
    for (const cuda::Job& job : numbered) all_.table_count = std::max(all_.table_count, job.table_number + 1);
    const auto count = static_cast<std::size_t>(all_.table_count);
    tables_ = DeviceBuffer<cuda::DeviceTable>(device, count);
    counts_ = DeviceBuffer<unsigned long long>(device, count * LevelTable::cells);
    all_.tables = tables_.data();
    all_.counts = counts_.data();
  }
  if (encodes && large_buckets_ > 0) make_topk_scratch(stream);
  stream.synchronize();  // the copies read memory of this function
}

void CudaBatch::make_topk_scratch(StreamView stream) {
  all_.topk.slot = cuda::topk_slot(options_of<TopkOptions>(options_).density);
  const auto pieces = static_cast<std::size_t>(all_.pieces);
  const std::size_t candidates = pieces * static_cast<std::size_t>(all_.topk.slot);
  topk_states_ = DeviceBuffer<cuda::TopkState>(device_, static_cast<std::size_t>(large_buckets_));
  topk_pieces_ = DeviceBuffer<cuda::TopkPiece>(device_, pieces);
  topk_values_ = DeviceBuffer<float>(device_, candidates);
  topk_positions_ = DeviceBuffer<std::uint16_t>(device_, candidates);
  zero_bytes(topk_states_.data(), topk_states_.size() * sizeof(cuda::TopkState), stream);
  all_.topk.states = topk_states_.data();
  all_.topk.pieces = topk_pieces_.data();
  all_.topk.values = topk_values_.data();
  all_.topk.positions = topk_positions_.data();
}

/// The jobs for the kernels, with their pieces, buckets, tables and scratch memory. Records begin behind
/// `table` bytes.
std::vector<cuda::Job> CudaBatch::number(std::span<const CodingJob> jobs, std::int64_t table, Tables tables) {
  std::vector<cuda::Job> out;
  std::map<std::uint32_t, std::int32_t> of_tensors;
  for (const CodingJob& job : jobs) {
    cuda::Job& numbered = out.emplace_back();
    static_cast<CodingJob&>(numbered) = job;
    const auto number = static_cast<std::int32_t>(out.size()) - 1;
    if (job.non_finite == nullptr) numbered.non_finite = ignored_.data();
    numbered.contributions = job.ranks > 0 ? contributions_.data() + number * job.ranks : nullptr;
    // A reduction's table is the stripe's.
    const auto next = static_cast<std::int32_t>(of_tensors.size());
    const bool has_own = job.ranks > 0 || tables == Tables::of_jobs;
    numbered.table_number = has_own ? number : of_tensors.try_emplace(job.tensor, next).first->second;
    pieces_before_.push_back(numbered.pieces_before = all_.pieces);
    buckets_before_.push_back(numbered.buckets_before = all_.buckets);
    const std::int64_t buckets = (job.n + job.bucket - 1) / job.bucket;
    all_.buckets += buckets;
    all_.errors |= job.error != nullptr;
    numbered.kept_before = all_.kept_buckets;
    numbered.small = {0, all_.small.whole, all_.small.rest};
    numbered.kept = {0, all_.kept.whole, all_.kept.rest};
    numbered.large_before = large_buckets_;
    if (kernels_.unit == Unit::tile) {
      all_.pieces += (job.n + cuda::tile_values - 1) / cuda::tile_values;
    } else if (kernels_.unit == Unit::piece) {
      const std::int64_t pieces = cuda::piece_count(job.n, job.bucket);
      const bool is_wide = allows_wide_access(job, table);
      const auto count = [](cuda::Wholes& mine, auto& sum, std::int64_t whole, std::int64_t all) {
        mine.whole = whole;
        sum.whole += whole;
        sum.rest += all - whole;
      };
      all_.pieces += pieces;
      if (job.bucket <= cuda::small_values) {
        const bool has_whole = is_wide && job.bucket == kernels_.whole_bucket;
        count(numbered.small, all_.small, has_whole ? job.n / cuda::piece_length(job.bucket) : 0, pieces);
      } else if (job.bucket <= cuda::kept_values) {
        const bool has_whole = is_wide && job.bucket % cuda::tile_values == 0;
        count(numbered.kept, all_.kept, has_whole ? job.n / job.bucket : 0, buckets);
        while (all_.team_warps * cuda::team_values < job.bucket) all_.team_warps *= 2;
      } else {
        all_.large = true;
      }
    } else if (job.bucket <= cuda::shared_values) {
      all_.kept_buckets += buckets;
    } else {
      all_.pieces += cuda::piece_count(job.n, job.bucket);
      large_buckets_ += buckets;
    }
  }
  pieces_before_.push_back(all_.pieces);
  buckets_before_.push_back(all_.buckets);
  return out;
}

void CudaBatch::encode(const CodingContext& context, StreamView stream, const std::uint32_t* step) {
  const ScopedDevice current(device_);
  cuda::Launch launch = all_;
  launch.context = context;
  launch.step_at = step;
  kernels_.encode(launch, options_, stream.handle());
  lpsgd::check(cudaGetLastError());
}

void CudaBatch::decode(std::size_t first, std::size_t last, bool add, StreamView stream, float weight) {
  require(first <= last && last < pieces_before_.size(), "jobs that the batch does not have");
  const ScopedDevice current(device_);
  cuda::Launch launch = all_;
  launch.weight = weight;
  launch.job_first = static_cast<std::int32_t>(first);
  launch.job_last = static_cast<std::int32_t>(last);
  launch.piece_first = pieces_before_[first];
  launch.pieces = pieces_before_[last] - pieces_before_[first];
  launch.bucket_first = buckets_before_[first];
  launch.buckets = buckets_before_[last] - buckets_before_[first];
  kernels_.decode(launch, options_, add, stream.handle());
  lpsgd::check(cudaGetLastError());
}

void CudaBatch::check(StreamView stream) {
  const ScopedDevice current(device_);
  cuda::check_floats(all_, stream.handle());
  lpsgd::check(cudaGetLastError());
}

void cuda_transpose(std::span<const Transposition> jobs, StreamView stream) {
  const ScopedDevice current(stream.device());
  const auto tiles = [](std::int64_t n) { return (n + cuda::transposed_tile - 1) / cuda::transposed_tile; };
  for (std::size_t done = 0; done < jobs.size();) {
    cuda::Transpositions batch;
    for (; done < jobs.size() && batch.count < cuda::Transpositions::max_count; ++done) {
      const Transposition& job = jobs[done];
      batch.jobs[batch.count++] = {job, batch.tiles};
      batch.tiles += job.outer * tiles(job.rows) * tiles(job.columns);
    }
    cuda::transpose(batch, stream.handle());
    check(cudaGetLastError());
  }
}

}  // namespace lpsgd
