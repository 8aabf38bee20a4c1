#include "comm/exchange_unit.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace lpsgd {
namespace {

constexpr Transport::Request no_request = static_cast<Transport::Request>(-1);

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

std::int64_t count(std::span<const Segment> segments) {
  std::int64_t n = 0;
  for (const Segment& segment : segments) n += segment.n;
  return n;
}

/// Each rank sends every owner its part of the gradient; the owner sends back its part of the mean.
class ReduceBroadcast final : public UnitInFlight {
 public:
  explicit ReduceBroadcast(ExchangeShared& shared)
      : UnitInFlight(shared),
        rank_(shared.transport.rank()),
        ranks_(shared.transport.size()),
        arriving_(static_cast<std::size_t>(ranks_), no_request),
        returning_(static_cast<std::size_t>(ranks_), no_request),
        decoded_(static_cast<std::size_t>(ranks_)),
        contributions_(static_cast<std::size_t>(ranks_)),
        segment_contributions_(static_cast<std::size_t>(ranks_)) {
    sends_.reserve(2 * static_cast<std::size_t>(ranks_));
  }

  void reserve(const Unit& unit) override {
    const std::size_t incoming = unit.message_bytes(rank_) * static_cast<std::size_t>(ranks_ - 1);
    if (outgoing_.size() < unit.bytes()) outgoing_ = Buffer<std::byte>(unit.bytes());
    if (means_.size() < unit.bytes()) means_ = Buffer<std::byte>(unit.bytes());
    if (incoming_.size() < incoming) incoming_ = Buffer<std::byte>(incoming);
  }

  void begin() override {
    tag_ = static_cast<int>(number_ % 8192) * 2;
    encoded_ = 0;
    reduced_ = false;
    undecoded_ = ranks_;
    std::fill(decoded_.begin(), decoded_.end(), false);
    sends_.clear();
    const Unit& unit = *unit_;
    const std::size_t own_bytes = unit.message_bytes(rank_);
    std::byte* incoming = incoming_.data();
    for (int r = 0; r < ranks_; ++r) {
      const auto at = static_cast<std::size_t>(r);
      if (r == rank_) {
        contributions_[at] = message(outgoing_, r).data();
        continue;
      }
      contributions_[at] = incoming;
      if (own_bytes > 0) arriving_[at] = shared_.transport.irecv({incoming, own_bytes}, r, tag_);
      incoming += own_bytes;
      if (unit.message_bytes(r) > 0)
        returning_[at] = shared_.transport.irecv(message(means_, r), r, tag_ + 1);
    }
  }

  bool advance() override {
    if (done()) return false;
    if (encoded_ < ranks_) return encode_next();
    bool moved = false;
    if (!reduced_) {
      moved = poll(arriving_);
      if (std::all_of(arriving_.begin(), arriving_.end(), [](auto r) { return r == no_request; })) {
        reduce();
        return true;
      }
    }
    for (int shift = 0; shift < ranks_; ++shift) {
      const int owner = (rank_ + shift) % ranks_;
      const auto o = static_cast<std::size_t>(owner);
      if (decoded_[o] || (owner == rank_ && !reduced_) || !complete(returning_[o])) continue;
      decode(unit_->owned_by(owner), message(means_, owner).data());
      decoded_[o] = true;
      --undecoded_;
      return true;
    }
    if (poll(sends_)) {
      std::erase(sends_, no_request);
      moved = true;
    }
    return moved;
  }

  bool done() const override { return encoded_ == ranks_ && reduced_ && undecoded_ == 0 && sends_.empty(); }

  std::string waiting_for() const override {
    std::string text;
    for (std::size_t r = 0; r < arriving_.size(); ++r)
      if (arriving_[r] != no_request || returning_[r] != no_request)
        text += fmt::format("{}{}", text.empty() ? "" : ", ", r);
    return text;
  }

 private:
  std::span<std::byte> message(Buffer<std::byte>& buffer, int owner) {
    return buffer.view().subspan(unit_->message[static_cast<std::size_t>(owner)],
                                 unit_->message_bytes(owner));
  }
  bool complete(Transport::Request& request) {
    if (request != no_request && shared_.transport.test(request)) request = no_request;
    return request == no_request;
  }
  bool poll(std::vector<Transport::Request>& requests) {
    bool moved = false;
    for (Transport::Request& request : requests)
      if (request != no_request && complete(request)) moved = true;
    return moved;
  }
  void send(std::span<const std::byte> bytes, int to, int tag) {
    if (bytes.empty()) return;
    sends_.push_back(shared_.transport.isend(bytes, to, tag));
    shared_.bytes_sent += bytes.size();
  }

  // The next rank's part first and the own part last: ranks begin with different owners.
  bool encode_next() {
    const int owner = (rank_ + 1 + encoded_) % ranks_;
    const std::span<std::byte> bytes = message(outgoing_, owner);
    encode(unit_->owned_by(owner), bytes.data());
    ++encoded_;
    if (owner != rank_) send(bytes, owner, tag_);
    return true;
  }

  void reduce() {
    const std::span<const Segment> segments = unit_->owned_by(rank_);
    const std::span<std::byte> mean = message(means_, rank_);
    coded(CodecClock::Work::reduce, count(segments), ranks_, [&] {
      for (const Segment& segment : segments) {
        ExchangeTensor& tensor = shared_.tensors[segment.tensor];
        if (tensor.untouched) continue;
        for (std::size_t r = 0; r < contributions_.size(); ++r)
          segment_contributions_[r] = contributions_[r] + segment.at;
        tensor.codec->reduce(segment_contributions_, tensor.residual2_at(segment.first), segment.n,
                             segment.first, tensor.bucket, shared_.context(segment.tensor, 2),
                             mean.data() + segment.at);
      }
    });
    reduced_ = true;
    for (int shift = 1; shift < ranks_; ++shift) send(mean, (rank_ + shift) % ranks_, tag_ + 1);
  }

  const int rank_, ranks_;
  Buffer<std::byte> outgoing_, incoming_, means_;  // by owner; by rank; by owner
  std::vector<Transport::Request> arriving_, returning_, sends_;
  std::vector<bool> decoded_;
  std::vector<const std::byte*> contributions_, segment_contributions_;
  int tag_ = 0;
  int encoded_ = 0;  // owners whose part is encoded
  int undecoded_ = 0;
  bool reduced_ = false;
};

/// The transport's own sum of float32.
class AllReduce final : public UnitInFlight {
 public:
  using UnitInFlight::UnitInFlight;

  void reserve(const Unit& unit) override {
    const auto n = static_cast<std::size_t>(count(unit.segments));
    if (unit.segments.size() > 1 && packed_.size() < n) packed_ = Buffer<float>(n);
  }

  void begin() override { done_ = false; }

  bool advance() override {
    if (done_) return false;
    const std::span<const Segment> segments = unit_->segments;
    const std::int64_t n = count(segments);
    const Segment& first = segments.front();
    float* values =
        segments.size() > 1 ? packed_.data() : shared_.tensors[first.tensor].gradient + first.first;
    if (request_ == no_request) {
      coded(CodecClock::Work::encode, n, 1, [&] { gather(values); });
      request_ = shared_.transport.iallreduce({values, static_cast<std::size_t>(n)});
      shared_.bytes_sent += shared_.transport.ring_share(static_cast<std::size_t>(n) * sizeof(float));
      return true;
    }
    if (!shared_.transport.test(request_)) return false;
    request_ = no_request;
    coded(CodecClock::Work::decode, n, 1, [&] { scatter(values); });
    done_ = true;
    return true;
  }

  bool done() const override { return done_; }
  std::string waiting_for() const override { return done_ ? "" : "any"; }

 private:
  void gather(float* values) {
    for (const Segment& segment : unit_->segments) {
      ExchangeTensor& tensor = shared_.tensors[segment.tensor];
      float* gradient = tensor.gradient + segment.first;
      if (!check_values(gradient, segment.n)) tensor.own_finite = false;
      if (values != gradient)
        std::memcpy(values, gradient, static_cast<std::size_t>(segment.n) * sizeof(float));
      values += segment.n;
    }
  }
  void scatter(const float* values) {
    const float scale = 1.0f / static_cast<float>(shared_.transport.size());
    for (const Segment& segment : unit_->segments) {
      ExchangeTensor& tensor = shared_.tensors[segment.tensor];
      float* gradient = tensor.gradient + segment.first;
      for (std::int64_t i = 0; i < segment.n; ++i) gradient[i] = values[i] * scale;
      if (!check_values(gradient, segment.n)) tensor.mean_finite = false;
      tensor.decoded(segment.n);
      values += segment.n;
    }
  }

  Buffer<float> packed_;
  Transport::Request request_ = no_request;
  bool done_ = true;
};

/// An all-reduce of as many bytes as the codec would send, whose values nobody reads; each rank goes on with
/// its own encoded gradient.
class Simulated final : public UnitInFlight {
 public:
  using UnitInFlight::UnitInFlight;

  void reserve(const Unit& unit) override {
    if (outgoing_.size() < unit.bytes()) outgoing_ = Buffer<std::byte>(unit.bytes());
    // Zeros stay zeros: sums of encoded bytes taken for floats would be denormal, and slow.
    if (summed_.size() < summed(unit)) summed_ = Buffer<float>(summed(unit));
  }

  void begin() override { done_ = false; }

  bool advance() override {
    if (done_) return false;
    if (request_ == no_request) {
      encode(unit_->segments, outgoing_.data());
      request_ = shared_.transport.iallreduce(summed_.view().first(summed(*unit_)));
      shared_.bytes_sent += shared_.transport.ring_share(unit_->bytes());
      return true;
    }
    if (!shared_.transport.test(request_)) return false;
    request_ = no_request;
    decode(unit_->segments, outgoing_.data());
    done_ = true;
    return true;
  }

  bool done() const override { return done_; }
  std::string waiting_for() const override { return done_ ? "" : "any"; }

 private:
  static std::size_t summed(const Unit& unit) { return (unit.bytes() + sizeof(float) - 1) / sizeof(float); }

  Buffer<std::byte> outgoing_;
  Buffer<float> summed_;
  Transport::Request request_ = no_request;
  bool done_ = true;
};

}  // namespace

void CodecClock::add(Work work, double values, int ranks, double start, double end) {
  const double seconds = end - start;
  exposed += std::max(0.0, end - std::max(start, exposed_from.load(std::memory_order_relaxed)));
  if (work != Work::reduce) {
    (work == Work::encode ? encode : decode) += seconds;
    if (values == 0) return;  // an owner's part can be empty; it says nothing of the speed
    (work == Work::encode ? encoding_ : decoding_) += seconds;
    (work == Work::encode ? encoded_ : decoded_) += values;
  } else {
    // Until both are measured, an encoding counts like a decoding.
    const bool measured = encoding_ > 0 && decoding_ > 0;
    const double one_encode = measured ? encoding_ / encoded_ : 1.0;
    const double decodes = ranks * (measured ? decoding_ / decoded_ : 1.0);
    decode += seconds * decodes / (decodes + one_encode);
    encode += seconds * one_encode / (decodes + one_encode);
  }
}

void UnitInFlight::start(const Unit& unit, std::size_t number) {
  unit_ = &unit;
  number_ = number;
  if (shared_.trace) started_ = now_seconds();
  begin();
}

void UnitInFlight::finish() {
  if (shared_.trace) shared_.trace->carried(number_, started_, now_seconds());
}

void UnitInFlight::encode(std::span<const Segment> segments, std::byte* message) {
  coded(CodecClock::Work::encode, count(segments), 1, [&] {
    for (const Segment& segment : segments) {
      ExchangeTensor& tensor = shared_.tensors[segment.tensor];
      tensor.stage();
      float* values = tensor.values() + segment.first;
      const bool finite =
          tensor.untouched
              ? check_values(values, segment.n)
              : tensor.codec->encode(values, tensor.residual1_at(segment.first), segment.n, segment.first,
                                     tensor.bucket, shared_.context(segment.tensor, 1, tensor.stage_table()),
                                     message + segment.at);
      if (!finite) tensor.own_finite = false;
    }
  });
  if (shared_.error)
    for (const Segment& segment : segments)
      shared_.error->see(segment, shared_.tensors[segment.tensor], message + segment.at);
}

void UnitInFlight::decode(std::span<const Segment> segments, const std::byte* message) {
  coded(CodecClock::Work::decode, count(segments), 1, [&] {
    for (const Segment& segment : segments) {
      ExchangeTensor& tensor = shared_.tensors[segment.tensor];
      const bool finite = tensor.untouched
                              ? tensor.own_finite
                              : tensor.codec->decode(message + segment.at, segment.n, tensor.bucket, false,
                                                     tensor.values() + segment.first);
      if (!finite) tensor.mean_finite = false;
      tensor.decoded(segment.n);
    }
  });
}

std::unique_ptr<UnitInFlight> make_unit_in_flight(Collective collective, ExchangeShared& shared) {
  switch (collective) {
    case Collective::allreduce:
      return std::make_unique<AllReduce>(shared);
    case Collective::simulated:
      return std::make_unique<Simulated>(shared);
    default:
      return std::make_unique<ReduceBroadcast>(shared);
  }
}

}  // namespace lpsgd
