#include "quant/codec.h"

#include <cpuid.h>

#include <algorithm>
#include <cstring>

#include "core/buffer.h"
#include "core/error.h"
#include "quant/codec_table.h"

namespace lpsgd {

namespace {

bool has_f16c() {  // some compilers' __builtin_cpu_supports lacks it
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

std::vector<CpuIsa> detect() {
  std::vector<CpuIsa> isas{CpuIsa::baseline};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() &&
      __builtin_cpu_supports("popcnt")) {
    isas.push_back(CpuIsa::avx2);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
      isas.push_back(CpuIsa::avx512);
  }
  return isas;
}

}  // namespace

const char* to_text(CpuIsa isa) {
  return isa == CpuIsa::avx512 ? "avx512" : isa == CpuIsa::avx2 ? "avx2" : "baseline";
}

const std::vector<CpuIsa>& cpu_isas() {
  static const std::vector<CpuIsa> isas = detect();
  return isas;
}

std::int64_t BucketSize::of(const TensorInfo& info) const {
  const std::int64_t n = kind == tensor ? info.elements : kind == column ? info.columns().rows : count;
  return std::max<std::int64_t>(n, 1);
}

Codec::Codec(const CodecSpec& spec, std::int64_t bucket, CpuIsa isa)
    : spec_(spec),
      bucket_(bucket),
      entry_(&codec_entry(spec.kind)),
      kernels_(std::make_shared<CodecKernels>(entry_->kernels(isa))) {
  require(bucket >= 1, "a bucket holds at least one value");
  require(spec.options.index() == entry_->defaults.index(), "a codec with the options of another");
  if (spec.kind == "topk" && bucket > std::int64_t{1} << 32)
    throw Error(fmt::format("{}: a bucket of {} values; allowed are 2^32, whose indices have 32 bits",
                            to_text(spec), bucket));
  if (const auto conflict = find_conflict(spec)) throw Error(to_text(spec) + ": " + conflict->message);
}

std::size_t Codec::table_bytes() const {
  return entry_->row.table_bytes ? static_cast<std::size_t>(entry_->row.table_bytes(spec_.options)) : 0;
}

bool Codec::carries_non_finite() const {
  return !entry_->row.hides_non_finite || !entry_->row.hides_non_finite(spec_.options);
}

std::size_t Codec::records_bytes(std::int64_t n) const {
  const auto bytes = entry_->row.record_bytes;
  const std::int64_t full = n / bucket_, rest = n % bucket_;
  return static_cast<std::size_t>((full > 0 ? full * bytes(spec_.options, bucket_) : 0) +
                                  (rest > 0 ? bytes(spec_.options, rest) : 0));
}

CodingJob Codec::job(std::int64_t first, std::int64_t n, std::size_t tensor) const {
  CodingJob job;
  job.n = n;
  job.first = first;
  job.bucket = bucket_;
  job.tensor = static_cast<std::uint32_t>(tensor);
  return job;
}

/// The job for kernels: `bytes` points to the records, `table` to the table.
CodingJob Codec::records_of(CodingJob job) const {
  require(job.bucket == bucket_, "a job of another length of bucket");
  job.table = job.bytes;
  job.bytes += table_bytes();
  return job;
}

void Codec::make_table(const CodingJob& job, std::byte* table) const {
  if (table_bytes() == 0) return;
  std::int64_t counts[table_cells] = {};
  kernels_->count(spec_.options, job, counts);
  entry_->row.make_table(spec_.options, counts, table);
}

bool Codec::encode(const CodingJob& job, const CodingContext& context) const {
  if (job.n == 0) return true;
  if (job.table && table_bytes() > 0)
    std::memcpy(job.bytes, job.table, table_bytes());
  else
    make_table(job, job.bytes);
  return kernels_->encode(spec_.options, context, records_of(job));
}

bool Codec::decode(const CodingJob& job, bool add) const {
  return job.n == 0 || kernels_->decode(spec_.options, records_of(job), add);
}

bool Codec::reduce(const CodingJob& job, const CodingContext& context) const {
  require(job.ranks > 0, "a mean over no ranks");
  if (job.n == 0) return true;
  const bool fused = kernels_->reduce && table_bytes() == 0 && bucket_ <= kernels_->reduce_bucket;
  // Whole buckets at a time, few enough that their sum stays in the L1 cache.
  constexpr std::int64_t cached_values = 4096, padding = 64;
  const std::int64_t part = std::min(job.n, bucket_ * std::max<std::int64_t>(1, cached_values / bucket_));
  thread_local Buffer<float> scratch;
  const auto wanted = static_cast<std::size_t>(fused ? std::min(bucket_, job.n) + padding : part);
  if (scratch.size() < wanted) scratch = Buffer<float>(wanted);
  return fused ? kernels_->reduce(spec_.options, context, records_of(job), scratch.data())
               : reduce_in_parts(job, context, part, scratch.data());
}

bool Codec::reduce_in_parts(const CodingJob& job, const CodingContext& context, std::int64_t part,
                            float* mean) const {
  const float weight = 1.0f / static_cast<float>(job.ranks);
  // Calls use(job) for each part of the records, its values being the mean.
  const auto for_each_part = [&](auto use) {
    for (std::int64_t begin = 0; begin < job.n; begin += part) {
      CodingJob one = job;
      one.n = std::min(part, job.n - begin);
      one.first += begin;
      one.values = one.out = mean;
      if (job.residual) one.residual += begin;
      for (std::int32_t r = 0; r < job.ranks; ++r) {
        CodingJob sent = one;
        sent.bytes = const_cast<std::byte*>(job.contributions[r]);  // decode only reads
        sent = records_of(sent);
        sent.bytes += records_bytes(begin);
        kernels_->decode(spec_.options, sent, r > 0);
      }
      for (std::int64_t i = 0; i < one.n; ++i) mean[i] *= weight;
      one = records_of(one);
      one.bytes += records_bytes(begin);
      use(one);
    }
  };
  if (table_bytes() > 0) {
    std::int64_t counts[table_cells] = {};
    for_each_part([&](const CodingJob& one) { kernels_->count(spec_.options, one, counts); });
    entry_->row.make_table(spec_.options, counts, job.bytes);
  }
  bool finite = true;
  for_each_part([&](const CodingJob& one) { finite &= kernels_->encode(spec_.options, context, one); });
  return finite;
}

std::shared_ptr<const Codec> make_codec(const CodecSpec& spec, const TensorInfo& tensor) {
  return std::make_shared<Codec>(spec, spec.bucket.of(tensor));
}

namespace {

/// Copies `outer` matrices of rows x columns transposed; tiles keep both sides in cache.
void transpose(const Transposition& t) {
  constexpr std::int64_t tile = 16;
  const float* in = t.from;
  float* out = t.to;
  for (std::int64_t o = 0; o < t.outer; ++o, in += t.rows * t.columns, out += t.rows * t.columns)
    for (std::int64_t r0 = 0; r0 < t.rows; r0 += tile)
      for (std::int64_t c0 = 0; c0 < t.columns; c0 += tile)
        for (std::int64_t c = c0; c < std::min(t.columns, c0 + tile); ++c)
          for (std::int64_t r = r0; r < std::min(t.rows, r0 + tile); ++r)
            out[c * t.rows + r] = in[r * t.columns + c];
}

}  // namespace

void to_column_order(const TensorInfo::Columns& shape, const float* memory, float* encoded) {
  transpose({memory, encoded, shape.outer, shape.rows, shape.columns});
}

void from_column_order(const TensorInfo::Columns& shape, const float* encoded, float* memory) {
  transpose({encoded, memory, shape.outer, shape.columns, shape.rows});
}

std::vector<Stripe> stripes(std::int64_t elements, std::int64_t bucket, int ranks, std::size_t tensor) {
  const std::int64_t buckets = (elements + bucket - 1) / bucket;
  std::vector<Stripe> out(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    Stripe& stripe = out[static_cast<std::size_t>(r)];
    stripe.first = std::min(elements, buckets * r / ranks * bucket);
    stripe.last = std::min(elements, buckets * (r + 1) / ranks * bucket);
    stripe.owner = static_cast<int>((static_cast<std::size_t>(r) + tensor) % static_cast<std::size_t>(ranks));
  }
  return out;
}

Stripe stripe_of(int rank, std::int64_t elements, std::int64_t bucket, int ranks, std::size_t tensor) {
  const auto count = static_cast<std::size_t>(ranks);
  const std::size_t r = (static_cast<std::size_t>(rank) + count - tensor % count) % count;
  return stripes(elements, bucket, ranks, tensor)[r];
}

}  // namespace lpsgd
