#include "comm/exchange_unit.h"

#include <algorithm>

#include "core/clock.h"
#include "core/range.h"

namespace lpsgd {
namespace {

constexpr Transport::Request no_request = static_cast<Transport::Request>(-1);

/// Each rank sends every owner its part of the gradient; the owner sends back its part of the mean.
///
/// Receives are posted first, so that arriving messages need no copy. Over an ordered transport each round is
/// one group of messages instead, and all of them count as complete.
class ReduceBroadcast final : public UnitInFlight {
 public:
  ReduceBroadcast(ExchangeShared& shared, std::unique_ptr<UnitCoder> coder)
      : UnitInFlight(shared, std::move(coder)),
        ordered_(shared.transport.ordered()),
        rank_(shared.transport.rank()),
        ranks_(shared.transport.size()),
        arriving_(static_cast<std::size_t>(ranks_), no_request),
        returning_(static_cast<std::size_t>(ranks_), no_request),
        decoded_(static_cast<std::size_t>(ranks_)) {
    sends_.reserve(2 * static_cast<std::size_t>(ranks_));
    owners_.reserve(static_cast<std::size_t>(ranks_));
  }

  void begin() override {
    encoded_ = sent_ = 0;
    reduced_ = returned_ = false;
    undecoded_ = ranks_;
    std::fill(decoded_.begin(), decoded_.end(), false);
    sends_.clear();
    if (ordered_) return;
    receive(1);
    receive(2);
  }

  bool advance() override {
    if (done()) return false;
    if (encoded_ < ranks_) {
      encode_next();
      return true;
    }
    bool moved = send_encoded();
    if (!reduced_) {
      moved |= poll(arriving_);
      if (sent_ == ranks_ &&
          std::all_of(arriving_.begin(), arriving_.end(), [](auto r) { return r == no_request; })) {
        in_range("reduce", [&] { coder_->reduce(); });
        reduced_ = true;
        return_mean();
        return true;
      }
    } else {
      moved |= return_mean();
    }
    if (decode_arrived()) return true;
    const std::size_t sent = sends_.size();
    std::erase_if(sends_, [this](Sent& s) { return complete(s.request); });
    return moved || sends_.size() < sent;
  }

  bool under_way() const override { return sent_ == ranks_; }
  bool done() const override { return returned_ && undecoded_ == 0 && sends_.empty(); }

  std::string waiting_for() const override {
    // A mean that does not come may wait for the ranks whose contributions have not come here either.
    for (const auto* requests : {&arriving_, &returning_}) {
      std::vector<int> ranks;
      for (int r = 0; r < ranks_; ++r)
        if ((*requests)[static_cast<std::size_t>(r)] != no_request)
          ranks.push_back(shared_.transport.rank_in_run(r));
      if (!ranks.empty()) return ranks_text(ranks);
    }
    std::vector<int> ranks;  // that have not taken what was sent to them
    ranks.reserve(sends_.size());
    for (const Sent& sent : sends_) ranks.push_back(shared_.transport.rank_in_run(sent.to));
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks.empty() ? "its codec" : ranks_text(ranks);
  }

 private:
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
  int tag(int round) const { return static_cast<int>(unit_.number % 8192) * 2 + round - 1; }
  void send(std::span<const std::byte> bytes, int to, int round) {
    if (bytes.empty()) return;
    sends_.push_back({shared_.transport.isend(bytes, to, tag(round)), to});
    shared_.bytes_sent += bytes.size();
  }
  void receive(int round) {
    for (int r = 0; r < ranks_; ++r) {
      const auto bytes = r == rank_   ? std::span<std::byte>()
                         : round == 1 ? coder_->incoming(r)
                                      : coder_->mean(r);
      (round == 1 ? arriving_ : returning_)[static_cast<std::size_t>(r)] =
          bytes.empty() ? no_request : shared_.transport.irecv(bytes, r, tag(round));
    }
  }

  // The next rank's part first and the own part last: ranks begin with different owners.
  int owner_in_turn(int turn) const { return (rank_ + 1 + turn) % ranks_; }

  void encode_next() {
    owners_.clear();
    const int last = std::min(ranks_, encoded_ + coder_->owners_at_once());
    for (; encoded_ < last; ++encoded_) owners_.push_back(owner_in_turn(encoded_));
    in_range("encode", [&] { coder_->encode(owners_); });
    send_encoded();
  }

  bool send_encoded() {
    if (sent_ == encoded_ || !coder_->ready()) return false;
    shared_.transport.begin_group();
    if (ordered_) receive(1);
    for (; sent_ < encoded_; ++sent_)
      if (const int owner = owner_in_turn(sent_); owner != rank_) send(coder_->outgoing(owner), owner, 1);
    shared_.transport.end_group();
    return true;
  }

  bool return_mean() {
    if (returned_ || !coder_->ready()) return false;
    shared_.transport.begin_group();
    if (ordered_) receive(2);
    for (int shift = 1; shift < ranks_; ++shift) send(coder_->mean(rank_), (rank_ + shift) % ranks_, 2);
    shared_.transport.end_group();
    returned_ = true;
    return true;
  }

  bool decode_arrived() {
    owners_.clear();
    const auto max_owners = static_cast<std::size_t>(coder_->owners_at_once());
    for (int shift = 0; shift < ranks_ && owners_.size() < max_owners; ++shift) {
      const int owner = (rank_ + shift) % ranks_;
      const auto o = static_cast<std::size_t>(owner);
      const bool posted = ordered_ ? returned_ : owner != rank_ || reduced_;
      if (decoded_[o] || !posted || !complete(returning_[o])) continue;
      owners_.push_back(owner);
      decoded_[o] = true;
      --undecoded_;
    }
    if (owners_.empty()) return false;
    in_range("decode", [&] { coder_->decode(owners_); });
    return true;
  }

  const bool ordered_;
  const int rank_, ranks_;
  struct Sent {
    Transport::Request request;
    int to;
  };
  std::vector<Transport::Request> arriving_, returning_;
  std::vector<Sent> sends_;
  std::vector<bool> decoded_;
  std::vector<int> owners_;     // of the current encode() or decode()
  int encoded_ = 0, sent_ = 0;  // owners whose part is encoded, and sent
  int undecoded_ = 0;
  bool reduced_ = false, returned_ = false;
};

/// Encodes, lets the transport sum, and decodes. `allreduce` sums the gradients as float32. `simulated` sums
/// zeros, of as many bytes as the codec would send; each rank then decodes its own encoded gradient.
class Summed final : public UnitInFlight {
 public:
  Summed(ExchangeShared& shared, std::unique_ptr<UnitCoder> coder, bool simulated)
      : UnitInFlight(shared, std::move(coder)), simulated_(simulated) {}

  void begin() override { stage_ = Stage::fresh; }

  bool advance() override {
    switch (stage_) {
      case Stage::fresh:
        in_range("encode", [&] { encode(); });
        stage_ = Stage::encoded;
        sum();
        return true;
      case Stage::encoded:
        return sum();
      case Stage::summing:
        if (!shared_.transport.test(request_)) return false;
        in_range("decode", [&] { simulated_ ? coder_->decode_own() : coder_->unpack(); });
        stage_ = Stage::done;
        return true;
      default:
        return false;
    }
  }

  bool under_way() const override { return stage_ >= Stage::summing; }
  bool done() const override { return stage_ == Stage::done; }
  std::string waiting_for() const override { return "other ranks"; }

 private:
  enum class Stage : std::uint8_t { fresh, encoded, summing, done };

  void encode() {
    if (!simulated_) {
      values_ = coder_->pack();
      return;
    }
    const int all = 0;
    coder_->encode({&all, 1});
    values_ = coder_->zeros();
  }
  bool sum() {
    if (unit_.number != shared_.next_sum || !coder_->ready()) return false;
    ++shared_.next_sum;
    request_ = shared_.transport.iallreduce(values_);
    shared_.bytes_sent +=
        shared_.transport.ring_share(simulated_ ? unit_.unit->bytes() : values_.size_bytes());
    stage_ = Stage::summing;
    return true;
  }

  const bool simulated_;
  std::span<float> values_;
  Transport::Request request_ = no_request;
  Stage stage_ = Stage::done;
};

}  // namespace

void UnitInFlight::start(NumberedUnit unit) {
  unit_ = unit;
  if (shared_.trace) started_ = now_seconds();
  coder_->start(unit);
  begin();
}

void UnitInFlight::finish() {
  if (shared_.trace) shared_.trace->carried(unit_.number, started_, now_seconds());
}

std::unique_ptr<UnitInFlight> make_unit_in_flight(Collective collective, ExchangeShared& shared,
                                                  std::unique_ptr<UnitCoder> coder) {
  if (collective == Collective::reduce_broadcast)
    return std::make_unique<ReduceBroadcast>(shared, std::move(coder));
  return std::make_unique<Summed>(shared, std::move(coder), collective == Collective::simulated);
}

}  // namespace lpsgd
