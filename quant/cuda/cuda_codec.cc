#include "quant/cuda/cuda_codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/cuda/check.h"
#include "core/error.h"
#include "quant/codec_table.h"
#include "quant/cuda/codec_kernels.h"

namespace lpsgd {

namespace {

constexpr std::pair<std::string_view, cuda::Kind> kinds[] = {
    {"none", cuda::Kind::none},     {"fp16", cuda::Kind::fp16},        {"bf16", cuda::Kind::bf16},
    {"onebit", cuda::Kind::onebit}, {"qsgd", cuda::Kind::qsgd},        {"sign", cuda::Kind::sign},
    {"topk", cuda::Kind::topk},     {"dynamic8", cuda::Kind::dynamic8}};

cuda::Kind kind_of(std::string_view name) {
  for (const auto& [kind_name, kind] : kinds)
    if (kind_name == name) return kind;
  throw Error(fmt::format("codec {} has no CUDA kernels", name));
}

/// A buffer that grows; what it held is lost when it does.
template <class T>
T* grown(DeviceBuffer<T>& buffer, Device device, std::size_t size) {
  if (buffer.size() < size) buffer = DeviceBuffer<T>(device, size + size / 2);
  return buffer.data();
}

}  // namespace

struct CudaCodec::Impl {
  Impl(const CodecSpec& spec, Device where)
      : device(where), row(codec_entry(spec.kind).row), codec(make_codec(spec)) {
    base.kind = kind_of(spec.kind);
    base.qsgd = base.kind == cuda::Kind::qsgd ? spec.options.get<QsgdOptions>() : QsgdOptions{};
    base.sign = base.kind == cuda::Kind::sign ? spec.options.get<SignOptions>() : SignOptions{};
    base.topk = base.kind == cuda::Kind::topk ? spec.options.get<TopkOptions>() : TopkOptions{};
    if (base.kind != cuda::Kind::dynamic8) return;
    dynamic8 = DeviceBuffer<Dynamic8Table>(device, 1);
    const Stream stream(device);
    copy_bytes(dynamic8.data(), &dynamic8_table(spec.options.get<Dynamic8Options>().type),
               sizeof(Dynamic8Table), stream);
    stream.synchronize();
    base.dynamic8 = dynamic8.data();
  }

  /// Puts the jobs on the device. Pageable copies: the host may reuse its arrays at once.
  cuda::Launch prepare(std::span<const CudaCodecJob> jobs, const CodingContext& context,
                       std::uint32_t* not_finite, StreamView stream) {
    cuda::Launch launch = base;
    launch.seed = context.seed;
    launch.step = context.step;
    launch.rank = context.rank;
    launch.round = context.round;
    launch.job_count = static_cast<std::int32_t>(jobs.size());
    launch.ranks = jobs.empty() ? 0 : static_cast<std::int32_t>(jobs[0].contributions.size());
    launch.weight = launch.ranks > 0 ? 1.0f / static_cast<float>(launch.ranks) : 1.0f;
    std::vector<const std::byte*> addresses;
    for (const CudaCodecJob& job : jobs) {
      require(job.contributions.size() == static_cast<std::size_t>(launch.ranks),
              "the jobs of one reduction come from different numbers of ranks");
      addresses.insert(addresses.end(), job.contributions.begin(), job.contributions.end());
    }
    const std::byte** on_device =
        addresses.empty() ? nullptr : grown(contributions, device, addresses.size());
    host_jobs.clear();
    for (std::size_t j = 0; j < jobs.size(); ++j) {
      const CudaCodecJob& job = jobs[j];
      cuda::Job& out = host_jobs.emplace_back();
      out.values = job.values;
      out.contributions = on_device ? on_device + j * static_cast<std::size_t>(launch.ranks) : nullptr;
      out.residual = job.residual;
      out.out = job.out;
      out.bytes = job.bytes;
      out.not_finite = not_finite + j;
      out.n = job.n;
      out.first = job.first;
      out.bucket = job.bucket;
      out.tensor = job.tensor;
      out.buckets_before = launch.buckets;
      out.pieces_before = launch.pieces;
      const std::int64_t buckets = (job.n + job.bucket - 1) / job.bucket;
      launch.buckets += buckets;
      launch.pieces += buckets * ((job.bucket + cuda::piece_values - 1) / cuda::piece_values);
      launch.small &= job.bucket <= cuda::piece_values;
    }
    if (on_device) copy_bytes(on_device, addresses.data(), addresses.size() * sizeof addresses[0], stream);
    upload(launch, stream);
    return launch;
  }

  void upload(cuda::Launch& launch, StreamView stream) {
    cuda::Job* to = grown(device_jobs, device, std::max<std::size_t>(1, host_jobs.size()));
    copy_bytes(to, host_jobs.data(), host_jobs.size() * sizeof(cuda::Job), stream);
    launch.jobs = to;
  }

  cuda::PieceScan* scan_memory(const cuda::Launch& launch) {
    return grown(scans, device, static_cast<std::size_t>(launch.pieces) + 1);
  }
  cuda::Scales* scale_memory(const cuda::Launch& launch) {
    return grown(scales, device, static_cast<std::size_t>(launch.buckets) + 1);
  }

  /// Tables of codecs that have one: into each encoding and, unpacked, beside the jobs. The host waits.
  void make_tables(std::span<const CudaCodecJob> jobs, cuda::Launch& launch, StreamView stream) {
    const std::size_t bytes = codec->table_bytes();
    if (bytes == 0) return;
    std::vector<std::int64_t> counted(jobs.size() * table_cells);
    if (std::any_of(jobs.begin(), jobs.end(), [](const CudaCodecJob& job) { return job.table == nullptr; })) {
      unsigned long long* cells = grown(counts, device, counted.size());
      zero_bytes(cells, counted.size() * sizeof counted[0], stream);
      check(cuda::launch_count(launch, scan_memory(launch), scale_memory(launch), cells, stream.handle()));
      copy_bytes(counted.data(), cells, counted.size() * sizeof counted[0], stream);
      stream.synchronize();
    }
    std::vector<LevelTable> unpacked(jobs.size());
    std::vector<std::byte> table(bytes);
    LevelTable* on_device = grown(levels, device, jobs.size() + 1);
    for (std::size_t j = 0; j < jobs.size(); ++j) {
      if (jobs[j].n == 0) continue;
      if (jobs[j].table)
        std::memcpy(table.data(), jobs[j].table, bytes);
      else
        row.make_table(codec->spec(), &counted[j * table_cells], table.data());
      unpacked[j].read(table.data(), base.qsgd.bits);
      unpacked[j].fill(base.qsgd.bits);
      copy_bytes(jobs[j].bytes, table.data(), bytes, stream);
      host_jobs[j].levels = on_device + j;
    }
    copy_bytes(on_device, unpacked.data(), unpacked.size() * sizeof(LevelTable), stream);
    stream.synchronize();  // the host's tables go
    upload(launch, stream);
  }

  void encode(std::span<const CudaCodecJob> jobs, const CodingContext& context, std::uint32_t* not_finite,
              StreamView stream) {
    const ScopedDevice current(device);
    cuda::Launch launch = prepare(jobs, context, not_finite, stream);
    make_tables(jobs, launch, stream);
    check(cuda::launch_encode(launch, launch.small ? nullptr : scan_memory(launch),
                              launch.small ? nullptr : scale_memory(launch), stream.handle()));
  }

  void decode(std::span<const CudaCodecJob> jobs, bool add, std::uint32_t* not_finite, StreamView stream) {
    const ScopedDevice current(device);
    const cuda::Launch launch = prepare(jobs, {}, not_finite, stream);
    check(cuda::launch_decode(launch, add, stream.handle()));
  }

  /// topk's mean is dense: it is added up in memory, contribution by contribution, and then encoded.
  void reduce_sparse(std::span<const CudaCodecJob> jobs, const CodingContext& context,
                     std::uint32_t* not_finite, StreamView stream) {
    std::size_t values = 0;
    for (const CudaCodecJob& job : jobs) values += static_cast<std::size_t>(job.n + 15) / 16 * 16;
    float* mean = grown(means, device, values + 1);
    std::vector<CudaCodecJob> parts(jobs.begin(), jobs.end());
    const std::size_t ranks = jobs.empty() ? 0 : jobs[0].contributions.size();
    for (std::size_t r = 0; r < ranks; ++r) {
      float* out = mean;
      for (std::size_t j = 0; j < jobs.size(); ++j) {
        parts[j].contributions = {};
        parts[j].out = out;
        parts[j].bytes = const_cast<std::byte*>(jobs[j].contributions[r]);  // only read
        out += (jobs[j].n + 15) / 16 * 16;
      }
      decode(parts, r > 0, not_finite, stream);
    }
    check(cuda::launch_scale(mean, static_cast<std::int64_t>(values), 1.0f / static_cast<float>(ranks),
                             stream.handle()));
    for (std::size_t j = 0; j < jobs.size(); ++j) {
      parts[j].values = parts[j].out;
      parts[j].bytes = jobs[j].bytes;
    }
    encode(parts, context, not_finite, stream);
  }

  const Device device;
  const CodecRow& row;
  const std::shared_ptr<const Codec> codec;  // the CPU's, for sizes
  cuda::Launch base;
  std::vector<cuda::Job> host_jobs;
  DeviceBuffer<cuda::Job> device_jobs;
  DeviceBuffer<const std::byte*> contributions;
  DeviceBuffer<cuda::PieceScan> scans;
  DeviceBuffer<cuda::Scales> scales;
  DeviceBuffer<unsigned long long> counts;
  DeviceBuffer<LevelTable> levels;
  DeviceBuffer<Dynamic8Table> dynamic8;
  DeviceBuffer<float> means;
};

CudaCodec::CudaCodec(const CodecSpec& spec, Device device) : impl_(std::make_unique<Impl>(spec, device)) {}
CudaCodec::~CudaCodec() = default;

void CudaCodec::encode(std::span<const CudaCodecJob> jobs, const CodingContext& context,
                       std::uint32_t* not_finite, StreamView stream) {
  impl_->encode(jobs, context, not_finite, stream);
}
void CudaCodec::decode(std::span<const CudaCodecJob> jobs, bool add, std::uint32_t* not_finite,
                       StreamView stream) {
  impl_->decode(jobs, add, not_finite, stream);
}
void CudaCodec::reduce(std::span<const CudaCodecJob> jobs, const CodingContext& context,
                       std::uint32_t* not_finite, StreamView stream) {
  if (impl_->base.kind == cuda::Kind::topk)
    impl_->reduce_sparse(jobs, context, not_finite, stream);
  else
    impl_->encode(jobs, context, not_finite, stream);
}

}  // namespace lpsgd
