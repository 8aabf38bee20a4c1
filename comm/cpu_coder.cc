// The exchange's coder on the CPU. A call returns when its work is done.
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "comm/coder.h"
#include "comm/unit_layout.h"
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
  void submitted(std::size_t, StreamView) override {}
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
  /// Of a segment of an owner in this block.
  float* residual1(const Segment& s, int block) {
    Buffer<float>& kept = kept_[s.tensor].residual1;
    return kept.empty() ? nullptr : kept.data() + shared_.tensors[s.tensor].in_residual1(s.first, block);
  }
  float* residual2(const Segment& s) {
    Buffer<float>& kept = kept_[s.tensor].residual2;
    return kept.empty() ? nullptr : kept.data() + (s.first - shared_.tensors[s.tensor].own.first);
  }

  /// The gradient as float32. Returns whether it is finite.
  bool copy(const Segment& s, std::byte* out) {
    stage(s.tensor);
    CodingJob job = float32_.job(0, s.n);
    job.values = values(s.tensor) + s.first;
    job.bytes = out;
    return float32_.encode(job, {});
  }
  /// The mean of such copies.
  void sum(const Segment& s, std::span<const std::byte* const> copies, float* out) {
    CodingJob job = float32_.job(0, s.n);
    job.contributions = copies.data();
    job.ranks = static_cast<std::int32_t>(copies.size());
    job.bytes = reinterpret_cast<std::byte*>(out);
    float32_.reduce(job, {});
  }
  /// This rank's gradient, for an owner in this block.
  bool encode(const Segment& s, int block, std::byte* out) {
    stage(s.tensor);
    float* v = values(s.tensor) + s.first;
    if (shared_.tensors[s.tensor].untouched) return check_values(v, s.n);
    return encode(s, block, v, stage_table(s.tensor), out);
  }
  /// Other values; without a table it is made of them.
  bool encode(const Segment& s, int block, const float* v, const std::byte* table, std::byte* out) {
    CodingJob job = job_of(s, out);
    job.values = v;
    job.residual = residual1(s, block);
    job.table = table;
    return shared_.tensors[s.tensor].codec->encode(job, shared_.context(1));
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
  /// With measure_error: adds what coding lost. Call it after `own` was encoded into `record` and before its
  /// mean is decoded. It takes a pass over the values and, without error feedback, a decoding.
  void measure_error(const Segment& s, int block, const float* own, std::byte* record) {
    if (!shared_.measure_error || shared_.tensors[s.tensor].untouched) return;
    const float* residual = residual1(s, block);
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
  const Codec float32_{CodecSpec{}, 1};
  std::vector<CpuTensor> kept_;
  std::vector<CodingError> errors_;
  Buffer<float> decoded_;
  double waiting_since_ = 0;
  Times times_;
};

class CpuUnitCoder final : public UnitCoder {
 public:
  CpuUnitCoder(CpuCoder& coder, std::span<const NumberedUnit> units)
      : coder_(coder), shared_(coder.shared()), self_(shared_.self()), layout_(self_) {
    const UnitLayout::Room room = layout_.room(units);
    outgoing_ = Buffer<std::byte>(room.outgoing);
    means_ = Buffer<std::byte>(room.means);
    incoming_ = Buffer<std::byte>(room.incoming);
    shares_ = Buffer<std::byte>(room.shares);
    incoming_shares_ = Buffer<std::byte>(room.incoming_shares);
    mean_of_block_ = Buffer<float>(room.summed);
    contributions_.reserve(static_cast<std::size_t>(std::max(self_.owners(), self_.blocks.size)));
  }

  bool free() const override { return true; }
  void start(NumberedUnit unit) override {
    layout_.set(*unit.unit);
    number_ = unit.number;
  }
  std::span<std::byte> outgoing(int owner) override { return layout_.outgoing(owner).of(outgoing_.data()); }
  std::span<std::byte> incoming(int block) override { return layout_.incoming(block).of(incoming_.data()); }
  std::span<std::byte> mean(int owner) override { return layout_.mean(owner).of(means_.data()); }
  std::span<std::byte> share(int place) override { return layout_.share(place).of(shares_.data()); }
  std::span<std::byte> incoming_share(int place) override {
    return layout_.incoming_share(place).of(incoming_shares_.data());
  }
  std::span<std::byte> means(int place) override {
    return layout_.mean(self_.blocks.first_owner(place), self_.owners()).of(means_.data());
  }
  int owners_at_once() const override { return 1; }
  bool ready() const override { return true; }

  // Copies say nothing about the codec's speed.
  void divide(std::span<const int> places) override {
    for (const int place : places) {
      std::byte* const to = share(place).data();
      coded(CodecClock::Work::encode, 0, 1, [&] {
        for (const Segment& s : unit().owned_by(self_.blocks.first_owner(place), self_.owners()))
          if (!coder_.copy(s, to + UnitLayout::in_share(s))) shared_.tensors[s.tensor].own_finite = false;
      });
    }
  }

  void sum() override {
    contributions_.resize(static_cast<std::size_t>(self_.blocks.size));
    coded(CodecClock::Work::decode, 0, 1, [&] {
      for (const Segment& s : unit().owned_by(self_.first_owner(), self_.owners())) {
        for (int place = 0; place < self_.blocks.size; ++place)
          contributions_[static_cast<std::size_t>(place)] =
              (place == self_.place() ? share(place) : incoming_share(place)).data() +
              UnitLayout::in_share(s);
        coder_.sum(s, contributions_, mean_of_block_.data() + s.value);
      }
    });
  }

  void encode(std::span<const int> owners) override {
    for (const int owner : owners) {
      const std::span<const Segment> segments = unit().owned_by(owner);
      const int block = self_.blocks.block_of_owner(owner);
      std::byte* message = outgoing(owner).data();
      coded(CodecClock::Work::encode, count_values(segments), 1, [&] {
        for (const Segment& s : segments) {
          ExchangeTensor& tensor = shared_.tensors[s.tensor];
          if (!self_.has_blocks()) {
            if (!coder_.encode(s, block, message + s.at)) tensor.own_finite = false;
          } else if (!coder_.encode(s, block, mean_of_block_.data() + s.value, nullptr, message + s.at)) {
            tensor.mean_finite = false;  // whose gradient it was divide() has seen
          }
        }
      });
      for (const Segment& s : segments)
        coder_.measure_error(
            s, block,
            self_.has_blocks() ? mean_of_block_.data() + s.value : coder_.values(s.tensor) + s.first,
            message + s.at);
    }
  }

  void reduce() override {
    const std::span<const Segment> segments = unit().owned_by(self_.owner());
    std::byte* message = mean(self_.owner()).data();
    contributions_.resize(static_cast<std::size_t>(self_.owners()));
    coded(CodecClock::Work::reduce, count_values(segments), self_.owners(), [&] {
      for (const Segment& s : segments) {
        if (shared_.tensors[s.tensor].untouched) continue;
        for (int block = 0; block < self_.owners(); ++block)
          contributions_[static_cast<std::size_t>(block)] =
              (block == self_.block() ? outgoing(self_.owner()) : incoming(block)).data() + s.at;
        coder_.reduce(s, contributions_, message + s.at);
      }
    });
  }

  void decode(std::span<const int> owners) override {
    for (const int owner : owners) decode(unit().owned_by(owner), mean(owner).data());
  }
  void decode_own() override { decode(unit().segments, outgoing_.data()); }

  std::span<float> pack() override {
    const std::span<const Segment> segments = unit().segments;
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
    coded(CodecClock::Work::decode, count_values(unit().segments), 1, [&] {
      const float scale = 1.0f / static_cast<float>(self_.blocks.ranks);
      const float* from = packed_;
      for (const Segment& s : unit().segments) {
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
    const std::size_t n = (unit().bytes() + sizeof(float) - 1) / sizeof(float);
    if (sums_.size() < n) sums_ = Buffer<float>(n);
    return sums_.view().first(n);
  }

 private:
  const Unit& unit() const { return layout_.unit(); }

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
  const RankPlace self_;
  UnitLayout layout_;                              // of the current unit
  Buffer<std::byte> outgoing_, incoming_, means_;  // by owner; by block; by owner
  Buffer<std::byte> shares_, incoming_shares_;     // by place
  Buffer<float> mean_of_block_;                    // of the owners at this place
  Buffer<float> sums_;
  float* packed_ = nullptr;
  std::vector<const std::byte*> contributions_;
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
