// The exchange's coder on the CPU. A call returns when its work is done.
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "comm/coder.h"
#include "core/buffer.h"
#include "core/clock.h"
#include "core/device.h"

namespace lpsgd {
namespace {

/// Whether all values are finite; NaNs become the canonical one.
bool check_values(float* values, std::int64_t n) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < n; ++i)
    largest = std::max(largest, std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffffu);
  if (largest < 0x7f800000u) return true;
  for (std::int64_t i = 0; i < n; ++i)
    if (values[i] != values[i]) values[i] = std::bit_cast<float>(0x7fc00000u);
  return false;
}

double square(float x) {
  return static_cast<double>(x) * static_cast<double>(x);
}

/// A tensor's state within the coder.
struct CpuTensor {
  Buffer<float> residual1, residual2;
  Buffer<float> staging;       // the gradient in the codec's order, if that is not memory order
  Buffer<std::byte> table;     // if the codec has one: this step's
  bool staged = false;         // this step's gradient is in `staging`
  bool has_table = false;      // this step's table is in `table`
  std::int64_t undecoded = 0;  // elements whose mean is not decoded yet
};

class CpuCoder final : public Coder {
 public:
  explicit CpuCoder(ExchangeShared& shared) : shared_(shared), kept_(shared.tensors.size()) {
    for (std::size_t t = 0; t < kept_.size(); ++t) {
      const ExchangeTensor& tensor = shared.tensors[t];
      kept_[t].residual1 = Buffer<float>(tensor.residual1);
      kept_[t].residual2 = Buffer<float>(tensor.residual2);
      if (tensor.permuted) kept_[t].staging = Buffer<float>(static_cast<std::size_t>(tensor.info.elements));
      if (const std::size_t table = tensor.codec->table_bytes()) kept_[t].table = Buffer<std::byte>(table);
    }
    errors_.resize(kept_.size());
  }

  std::unique_ptr<UnitCoder> make_unit_coder(std::span<const NumberedUnit> units) override;

  void begin_step() override {
    for (std::size_t t = 0; t < kept_.size(); ++t) {
      kept_[t].staged = kept_[t].has_table = false;
      kept_[t].undecoded = shared_.tensors[t].info.elements;
      shared_.tensors[t].own_finite = shared_.tensors[t].mean_finite = true;
    }
    shared_.clock.exposed_from = std::numeric_limits<double>::infinity();
  }
  void submitted(std::size_t) override {}
  void end_step(double busy) override { times_.busy += busy; }
  void waiting() override {
    waiting_since_ = now_seconds();
    shared_.clock.exposed_from = waiting_since_;
  }
  void joined() override { times_.exposed += now_seconds() - waiting_since_; }
  Times collect() override { return std::exchange(times_, {}); }
  std::int64_t read_finite_flags(bool) override { return shared_.step; }

  void copy_residual(std::size_t tensor, int round, std::span<float> to) const override {
    const Buffer<float>& kept = round == 1 ? kept_[tensor].residual1 : kept_[tensor].residual2;
    copy_values(to, kept.view(), {});
  }
  void set_residual(std::size_t tensor, int round, std::span<const float> values) override {
    std::copy(values.begin(), values.end(),
              (round == 1 ? kept_[tensor].residual1 : kept_[tensor].residual2).begin());
  }
  void take_errors(std::span<CodingError> sums) override {
    for (std::size_t t = 0; t < sums.size(); ++t) sums[t].add(std::exchange(errors_[t], {}));
  }

  // For the units.
  ExchangeShared& shared() { return shared_; }

  /// The gradient in the codec's order: read before, written after the exchange.
  float* values(std::size_t t) {
    return shared_.tensors[t].permuted ? kept_[t].staging.data() : shared_.tensors[t].gradient;
  }
  CodingJob job_of(const Segment& s, std::byte* bytes) const {
    CodingJob job = shared_.tensors[s.tensor].codec->job(s.first, s.n, s.tensor);
    job.bytes = bytes;
    return job;
  }
  float* residual1(const Segment& s) {
    Buffer<float>& kept = kept_[s.tensor].residual1;
    return kept.empty() ? nullptr : kept.data() + s.first;
  }
  float* residual2(const Segment& s) {
    Buffer<float>& kept = kept_[s.tensor].residual2;
    return kept.empty() ? nullptr : kept.data() + (s.first - shared_.tensors[s.tensor].own.first);
  }

  bool encode(const Segment& s, std::byte* out) {
    const ExchangeTensor& tensor = shared_.tensors[s.tensor];
    stage(s.tensor);
    float* v = values(s.tensor) + s.first;
    if (tensor.untouched) return check_values(v, s.n);
    CodingJob job = job_of(s, out);
    job.values = v;
    job.residual = residual1(s);
    job.table = stage_table(s.tensor);
    return tensor.codec->encode(job, shared_.context(1));
  }
  bool decode(const Segment& s, std::byte* in) {
    const ExchangeTensor& tensor = shared_.tensors[s.tensor];
    if (tensor.untouched) return tensor.own_finite;
    CodingJob job = job_of(s, in);
    job.out = values(s.tensor) + s.first;
    return tensor.codec->decode(job);
  }
  bool reduce(const Segment& s, std::span<const std::byte* const> contributions, std::byte* out) {
    CodingJob job = job_of(s, out);
    job.contributions = contributions.data();
    job.ranks = static_cast<std::int32_t>(contributions.size());
    job.residual = residual2(s);
    return shared_.tensors[s.tensor].codec->reduce(job, shared_.context(2));
  }
  /// With measure_error: adds what coding lost. Call it after `s` was encoded into `record` and before its
  /// mean is decoded. It takes a pass over the gradient and, without error feedback, a decoding.
  void measure_error(const Segment& s, std::byte* record) {
    if (!shared_.measure_error || shared_.tensors[s.tensor].untouched) return;
    const float* own = values(s.tensor) + s.first;
    const float* residual = residual1(s);
    const auto n = static_cast<std::size_t>(s.n);
    if (residual == nullptr) {
      if (decoded_.size() < n) decoded_ = Buffer<float>(n);
      CodingJob job = job_of(s, record);
      job.out = decoded_.data();
      shared_.tensors[s.tensor].codec->decode(job);
    }
    double squares = 0, lost = 0;
    for (std::size_t i = 0; i < n; ++i) {
      squares += square(own[i]);
      lost += square(residual ? residual[i] : own[i] - decoded_[i]);
    }
    errors_[s.tensor].add({squares, lost, residual ? lost : 0.0});
  }
  /// Call after `n` values of the mean have been written.
  void decoded(std::size_t t, std::int64_t n) {
    kept_[t].undecoded -= n;
    const ExchangeTensor& tensor = shared_.tensors[t];
    if (tensor.permuted && kept_[t].undecoded == 0)
      from_column_order(tensor.info.columns(), kept_[t].staging.data(), tensor.gradient);
  }

 private:
  /// Before the first read of values() in a step.
  void stage(std::size_t t) {
    if (!shared_.tensors[t].permuted || kept_[t].staged) return;
    to_column_order(shared_.tensors[t].info.columns(), shared_.tensors[t].gradient, kept_[t].staging.data());
    kept_[t].staged = true;
  }
  /// The table of the whole tensor's gradient and residual; nullptr if the codec has none. Made before the
  /// first stripe is encoded in a step, because encoding changes the residual.
  const std::byte* stage_table(std::size_t t) {
    CpuTensor& kept = kept_[t];
    if (kept.table.empty()) return nullptr;
    const ExchangeTensor& tensor = shared_.tensors[t];
    if (!kept.has_table) {
      CodingJob whole = tensor.codec->job(0, tensor.info.elements, t);
      whole.values = values(t);
      whole.residual = kept.residual1.empty() ? nullptr : kept.residual1.data();
      tensor.codec->make_table(whole, kept.table.data());
    }
    kept.has_table = true;
    return kept.table.data();
  }

  ExchangeShared& shared_;
  std::vector<CpuTensor> kept_;
  std::vector<CodingError> errors_;
  Buffer<float> decoded_;
  double waiting_since_ = 0;
  Times times_;
};

class CpuUnitCoder final : public UnitCoder {
 public:
  CpuUnitCoder(CpuCoder& coder, std::span<const NumberedUnit> units)
      : coder_(coder),
        shared_(coder.shared()),
        rank_(shared_.transport.rank()),
        ranks_(shared_.transport.size()),
        contributions_(static_cast<std::size_t>(ranks_)) {
    std::size_t bytes = 0, own = 0;
    for (const NumberedUnit& u : units) {
      bytes = std::max(bytes, u.unit->bytes());
      if (u.unit->owners() == ranks_) own = std::max(own, u.unit->message_bytes(rank_));
    }
    outgoing_ = Buffer<std::byte>(bytes);
    means_ = Buffer<std::byte>(bytes);
    incoming_ = Buffer<std::byte>(own * static_cast<std::size_t>(ranks_ - 1));
  }

  bool free() const override { return true; }
  void start(NumberedUnit unit) override {
    unit_ = unit.unit;
    number_ = unit.number;
  }
  std::span<std::byte> outgoing(int owner) override { return unit_->message_of(owner, outgoing_); }
  std::span<std::byte> mean(int owner) override { return unit_->message_of(owner, means_); }
  std::span<std::byte> incoming(int rank) override {
    const std::size_t own = unit_->message_bytes(rank_);
    return incoming_.view().subspan(own * static_cast<std::size_t>(rank < rank_ ? rank : rank - 1), own);
  }
  int owners_at_once() const override { return 1; }
  bool ready() const override { return true; }

  void encode(std::span<const int> owners) override {
    for (const int owner : owners) {
      const std::span<const Segment> segments = unit_->owned_by(owner);
      std::byte* message = outgoing(owner).data();
      coded(CodecClock::Work::encode, count_values(segments), 1, [&] {
        for (const Segment& s : segments)
          if (!coder_.encode(s, message + s.at)) shared_.tensors[s.tensor].own_finite = false;
      });
      for (const Segment& s : segments) coder_.measure_error(s, message + s.at);
    }
  }

  void reduce() override {
    const std::span<const Segment> segments = unit_->owned_by(rank_);
    std::byte* message = mean(rank_).data();
    coded(CodecClock::Work::reduce, count_values(segments), ranks_, [&] {
      for (const Segment& s : segments) {
        if (shared_.tensors[s.tensor].untouched) continue;
        for (int r = 0; r < ranks_; ++r)
          contributions_[static_cast<std::size_t>(r)] =
              (r == rank_ ? outgoing(r) : incoming(r)).data() + s.at;
        coder_.reduce(s, contributions_, message + s.at);
      }
    });
  }

  void decode(std::span<const int> owners) override {
    for (const int owner : owners) decode(unit_->owned_by(owner), mean(owner).data());
  }
  void decode_own() override { decode(unit_->segments, outgoing_.data()); }

  std::span<float> pack() override {
    const std::span<const Segment> segments = unit_->segments;
    const std::int64_t n = count_values(segments);
    const Segment& first = segments.front();
    packed_ = shared_.tensors[first.tensor].gradient + first.first;
    if (segments.size() > 1) {
      if (sums_.size() < static_cast<std::size_t>(n)) sums_ = Buffer<float>(static_cast<std::size_t>(n));
      packed_ = sums_.data();
    }
    coded(CodecClock::Work::encode, n, 1, [&] {
      float* to = packed_;
      for (const Segment& s : segments) {
        ExchangeTensor& tensor = shared_.tensors[s.tensor];
        float* gradient = tensor.gradient + s.first;
        if (!check_values(gradient, s.n)) tensor.own_finite = false;
        if (to != gradient) std::memcpy(to, gradient, static_cast<std::size_t>(s.n) * sizeof(float));
        to += s.n;
      }
    });
    return {packed_, static_cast<std::size_t>(n)};
  }
  void unpack() override {
    coded(CodecClock::Work::decode, count_values(unit_->segments), 1, [&] {
      const float scale = 1.0f / static_cast<float>(ranks_);
      const float* from = packed_;
      for (const Segment& s : unit_->segments) {
        ExchangeTensor& tensor = shared_.tensors[s.tensor];
        float* gradient = tensor.gradient + s.first;
        for (std::int64_t i = 0; i < s.n; ++i) gradient[i] = from[i] * scale;
        if (!check_values(gradient, s.n)) tensor.mean_finite = false;
        coder_.decoded(s.tensor, s.n);
        from += s.n;
      }
    });
  }

  // Sums of zeros stay zeros. Encoded bytes read as floats can be denormal, which is slow.
  std::span<float> zeros() override {
    const std::size_t n = (unit_->bytes() + sizeof(float) - 1) / sizeof(float);
    if (sums_.size() < n) sums_ = Buffer<float>(n);
    return sums_.view().first(n);
  }

 private:
  /// Runs `body`, which codes `values` values of the unit.
  template <class Body>
  void coded(CodecClock::Work work, std::int64_t values, int ranks, Body body) {
    const double start = now_seconds();
    body();
    const double end = now_seconds();
    shared_.clock.add(work, static_cast<double>(values), ranks, start, end);
    if (shared_.trace) shared_.trace->coded(number_, work, start, end);
  }
  void decode(std::span<const Segment> segments, std::byte* message) {
    coded(CodecClock::Work::decode, count_values(segments), 1, [&] {
      for (const Segment& s : segments) {
        if (!coder_.decode(s, message + s.at)) shared_.tensors[s.tensor].mean_finite = false;
        coder_.decoded(s.tensor, s.n);
      }
    });
  }

  CpuCoder& coder_;
  ExchangeShared& shared_;
  const int rank_, ranks_;
  Buffer<std::byte> outgoing_, incoming_, means_;  // by owner; by rank; by owner
  Buffer<float> sums_;
  float* packed_ = nullptr;
  std::vector<const std::byte*> contributions_;
  const Unit* unit_ = nullptr;
  std::size_t number_ = 0;
};

std::unique_ptr<UnitCoder> CpuCoder::make_unit_coder(std::span<const NumberedUnit> units) {
  return std::make_unique<CpuUnitCoder>(*this, units);
}

}  // namespace

std::unique_ptr<Coder> make_cpu_coder(ExchangeShared& shared) {
  return std::make_unique<CpuCoder>(shared);
}

std::int64_t count_values(std::span<const Segment> segments) {
  std::int64_t n = 0;
  for (const Segment& segment : segments) n += segment.n;
  return n;
}

void CodecClock::add(Work work, double values, int ranks, double start, double end) {
  const double seconds = end - start;
  exposed += std::max(0.0, end - std::max(start, exposed_from.load(std::memory_order_relaxed)));
  if (work != Work::reduce) {
    (work == Work::encode ? encode : decode) += seconds;
    if (values == 0) return;  // an owner's part can be empty, which gives no speed
    (work == Work::encode ? encoding_ : decoding_) += seconds;
    (work == Work::encode ? encoded_ : decoded_) += values;
  } else {
    // Until both are measured they count as equally fast.
    const bool measured = encoding_ > 0 && decoding_ > 0;
    const double one_encode = measured ? encoding_ / encoded_ : 1.0;
    const double decodes = ranks * (measured ? decoding_ / decoded_ : 1.0);
    decode += seconds * decodes / (decodes + one_encode);
    encode += seconds * one_encode / (decodes + one_encode);
  }
}

}  // namespace lpsgd
