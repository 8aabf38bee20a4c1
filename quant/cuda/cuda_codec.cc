#include "quant/cuda/cuda_codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/cuda/check.h"
#include "core/error.h"
#include "quant/cuda/codec_kernels.h"

namespace lpsgd {

namespace {

using cuda::Kind;

constexpr std::pair<std::string_view, Kind> kinds[] = {
    {"none", Kind::none}, {"fp16", Kind::fp16}, {"bf16", Kind::bf16}, {"onebit", Kind::onebit},
    {"qsgd", Kind::qsgd}, {"sign", Kind::sign}, {"topk", Kind::topk}, {"dynamic8", Kind::dynamic8}};

Kind kind_of(std::string_view name) {
  for (const auto& [kind_name, kind] : kinds)
    if (kind_name == name) return kind;
  throw Error(fmt::format("codec {} has no CUDA kernels", name));
}

bool is_float(Kind kind) {
  return kind == Kind::none || kind == Kind::fp16 || kind == Kind::bf16;
}

cudaError_t encode_kernels(const cuda::Launch& launch, cudaStream_t stream) {
  switch (launch.kind) {
    case Kind::onebit:
      return cuda::encode_onebit(launch, stream);
    case Kind::qsgd:
      return cuda::encode_qsgd(launch, stream);
    case Kind::sign:
      return cuda::encode_sign(launch, stream);
    case Kind::topk:
      return cuda::encode_topk(launch, stream);
    case Kind::dynamic8:
      return cuda::encode_dynamic8(launch, stream);
    default:
      return cuda::encode_floats(launch, stream);
  }
}

cudaError_t decode_kernels(const cuda::Launch& launch, bool add, cudaStream_t stream) {
  switch (launch.kind) {
    case Kind::onebit:
      return cuda::decode_onebit(launch, add, stream);
    case Kind::qsgd:
      return cuda::decode_qsgd(launch, add, stream);
    case Kind::sign:
      return cuda::decode_sign(launch, add, stream);
    case Kind::topk:
      return cuda::decode_topk(launch, add, stream);
    case Kind::dynamic8:
      return cuda::decode_dynamic8(launch, add, stream);
    default:
      return cuda::decode_floats(launch, add, stream);
  }
}

}  // namespace

struct CudaBatch::Impl {
  Impl(const CodecSpec& spec, Device where, std::span<const CodingJob> jobs)
      : device(where), codec(make_codec(spec)) {
    base.kind = kind_of(spec.kind);
    if (base.kind == Kind::qsgd) base.qsgd = spec.options.get<QsgdOptions>();
    if (base.kind == Kind::sign) base.sign = spec.options.get<SignOptions>();
    if (base.kind == Kind::topk) base.topk = spec.options.get<TopkOptions>();
    const Stream stream(device);
    if (base.kind == Kind::dynamic8) {
      dynamic8 = DeviceBuffer<Dynamic8Table>(device, 1);
      copy_bytes(dynamic8.data(), &dynamic8_table(spec.options.get<Dynamic8Options>().type),
                 sizeof(Dynamic8Table), stream);
      base.dynamic8 = dynamic8.data();
    }
    ignored = DeviceBuffer<std::uint32_t>(device, 1);
    base.ranks = jobs.empty() ? 0 : static_cast<std::int32_t>(jobs[0].contributions.size());
    if (base.ranks > 0) base.weight = 1.0f / static_cast<float>(base.ranks);

    std::vector<const std::byte*> addresses;
    std::vector<cuda::Job> host;
    std::map<std::uint32_t, std::int32_t> tables;
    std::size_t mean_values = 0;
    for (const CodingJob& job : jobs) {
      require(job.contributions.size() == static_cast<std::size_t>(base.ranks),
              "the jobs of one reduction come from different numbers of ranks");
      addresses.insert(addresses.end(), job.contributions.begin(), job.contributions.end());
      if (base.ranks > 0 && job.bucket > cuda::topk_shared_values)
        mean_values += static_cast<std::size_t>(job.n);
    }
    contributions = DeviceBuffer<const std::byte*>(device, addresses.size());
    if (base.kind == Kind::topk) means = DeviceBuffer<float>(device, mean_values);
    mean_values = 0;
    for (const CodingJob& job : jobs) {
      cuda::Job& out = host.emplace_back();
      out.values = job.values;
      if (base.ranks > 0)
        out.contributions = contributions.data() + (host.size() - 1) * static_cast<std::size_t>(base.ranks);
      out.residual = job.residual;
      out.out = job.out;
      out.bytes = job.bytes;
      out.non_finite = job.non_finite ? job.non_finite : ignored.data();
      out.error = job.error;
      out.n = job.n;
      out.first = job.first;
      out.bucket = job.bucket;
      out.tensor = job.tensor;
      // The owner's table is the stripe's.
      out.table =
          base.ranks > 0
              ? static_cast<std::int32_t>(host.size()) - 1
              : tables.try_emplace(job.tensor, static_cast<std::int32_t>(tables.size())).first->second;
      if (means.size() > 0 && job.bucket > cuda::topk_shared_values) {
        out.means = means.data() + mean_values;
        mean_values += static_cast<std::size_t>(job.n);
      }
      out.pieces_before = base.pieces;
      out.buckets_before = base.buckets;
      base.pieces += is_float(base.kind) ? (job.n + cuda::tile_values - 1) / cuda::tile_values
                                         : cuda::piece_count(job.n, job.bucket);
      base.buckets += (job.n + job.bucket - 1) / job.bucket;
      base.large |= !is_float(base.kind) && base.kind != Kind::topk && job.bucket > cuda::piece_values;
    }
    pieces_before.reserve(host.size() + 1);
    for (const cuda::Job& job : host) {
      pieces_before.push_back(job.pieces_before);
      buckets_before.push_back(job.buckets_before);
    }
    pieces_before.push_back(base.pieces);
    buckets_before.push_back(base.buckets);

    device_jobs = DeviceBuffer<cuda::Job>(device, host.size());
    copy_bytes(device_jobs.data(), host.data(), host.size() * sizeof(cuda::Job), stream);
    copy_bytes(contributions.data(), addresses.data(), addresses.size() * sizeof addresses[0], stream);
    base.jobs = device_jobs.data();
    base.job_last = static_cast<std::int32_t>(host.size());
    if (base.large) {
      scans = DeviceBuffer<cuda::PieceScan>(device, static_cast<std::size_t>(base.pieces));
      scales = DeviceBuffer<cuda::Scales>(device, static_cast<std::size_t>(base.buckets));
      base.scans = scans.data();
      base.scales = scales.data();
    }
    const bool encodes = !jobs.empty() && (base.ranks > 0 || jobs[0].values != nullptr);
    if (codec->table_bytes() > 0 && encodes) {
      base.table_count = base.ranks > 0 ? base.job_last : static_cast<std::int32_t>(tables.size());
      device_tables = DeviceBuffer<cuda::DeviceTable>(device, static_cast<std::size_t>(base.table_count));
      counts = DeviceBuffer<unsigned long long>(
          device, static_cast<std::size_t>(base.table_count) * LevelTable::cells);
      base.tables = device_tables.data();
      base.counts = counts.data();
    }
    stream.synchronize();  // what was copied goes
  }

  void encode(const CodingContext& context, StreamView stream, const std::uint32_t* step) const {
    const ScopedDevice current(device);
    cuda::Launch launch = base;
    launch.seed = context.seed;
    launch.step = context.step;
    launch.step_at = step;
    launch.rank = context.rank;
    launch.round = context.round;
    lpsgd::check(encode_kernels(launch, stream.handle()));
  }

  cuda::Launch range(std::size_t first, std::size_t last) const {
    require(first <= last && last + 1 <= pieces_before.size(), "jobs that the batch does not have");
    cuda::Launch launch = base;
    launch.job_first = static_cast<std::int32_t>(first);
    launch.job_last = static_cast<std::int32_t>(last);
    launch.piece_first = pieces_before[first];
    launch.pieces = pieces_before[last] - pieces_before[first];
    launch.bucket_first = buckets_before[first];
    launch.buckets = buckets_before[last] - buckets_before[first];
    return launch;
  }

  const Device device;
  const std::shared_ptr<const Codec> codec;  // the CPU's, for sizes
  cuda::Launch base;
  std::vector<std::int64_t> pieces_before, buckets_before;  // of each job, and of all
  DeviceBuffer<cuda::Job> device_jobs;
  DeviceBuffer<const std::byte*> contributions;
  DeviceBuffer<std::uint32_t> ignored;
  DeviceBuffer<cuda::PieceScan> scans;
  DeviceBuffer<cuda::Scales> scales;
  DeviceBuffer<cuda::DeviceTable> device_tables;
  DeviceBuffer<unsigned long long> counts;
  DeviceBuffer<Dynamic8Table> dynamic8;
  DeviceBuffer<float> means;
};

CudaBatch::CudaBatch(const CodecSpec& spec, Device device, std::span<const CodingJob> jobs)
    : impl_(std::make_unique<Impl>(spec, device, jobs)) {}
CudaBatch::~CudaBatch() = default;

void CudaBatch::encode(const CodingContext& context, StreamView stream, const std::uint32_t* step) {
  impl_->encode(context, stream, step);
}
void CudaBatch::reduce(const CodingContext& context, StreamView stream, const std::uint32_t* step) {
  impl_->encode(context, stream, step);
}
void CudaBatch::decode(std::size_t first, std::size_t last, bool add, StreamView stream, float weight) {
  const ScopedDevice current(impl_->device);
  cuda::Launch launch = impl_->range(first, last);
  launch.weight = weight;
  lpsgd::check(decode_kernels(launch, add, stream.handle()));
}
void CudaBatch::check(StreamView stream) {
  const ScopedDevice current(impl_->device);
  lpsgd::check(cuda::check_floats(impl_->base, stream.handle()));
}

void cuda_transpose(std::span<const Transposition> jobs, StreamView stream) {
  const ScopedDevice current(stream.device());
  for (std::size_t done = 0; done < jobs.size();) {
    cuda::Transpositions batch;
    for (; done < jobs.size() && batch.count < cuda::Transpositions::most; ++done) {
      const Transposition& job = jobs[done];
      const auto tiles = [](std::int64_t n) {
        return (n + cuda::transposed_tile - 1) / cuda::transposed_tile;
      };
      batch.jobs[batch.count++] = {job.from, job.to, job.outer, job.rows, job.columns, batch.tiles};
      batch.tiles += job.outer * tiles(job.rows) * tiles(job.columns);
    }
    check(cuda::transpose(batch, stream.handle()));
  }
}

}  // namespace lpsgd
