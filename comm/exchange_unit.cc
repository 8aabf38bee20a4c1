#include "comm/exchange_unit.h"

#include <algorithm>

#include "core/clock.h"
#include "core/range.h"

namespace lpsgd {
namespace {

constexpr Transport::Request no_request = static_cast<Transport::Request>(-1);

/// Each rank sends every owner its part of the gradient; the owner sends back its part of the mean. With
/// blocks of ranks the ranks of a block first send each other shares of their gradients as float32: each adds
/// those of the owners at its place, sends these the block's mean, and hands their means on to its block.
///
/// Receives are posted first, so that arriving messages need no copy. Over an ordered transport each round is
/// one group of messages instead, and all of them count as complete.
class ReduceBroadcast final : public UnitInFlight {
 public:
  ReduceBroadcast(ExchangeShared& shared, std::unique_ptr<UnitCoder> coder)
      : UnitInFlight(shared, std::move(coder)),
        ordered_(shared.transport.ordered()),
        blocks_(shared.blocks),
        rank_(shared.transport.rank()),
        block_(blocks_.block_of(rank_)),
        place_(blocks_.place_of(rank_)),
        count_(blocks_.count()),
        first_(blocks_.first_owner(place_)),
        own_(blocks_.owner_of(rank_)),
        shares_(static_cast<std::size_t>(blocks_.size), no_request),
        arriving_(static_cast<std::size_t>(count_), no_request),
        returning_(static_cast<std::size_t>(count_), no_request),
        handed_(static_cast<std::size_t>(blocks_.size), no_request),
        decoded_(static_cast<std::size_t>(blocks_.ranks)) {
    sends_.reserve(2 * static_cast<std::size_t>(count_ + blocks_.size));
    next_.reserve(static_cast<std::size_t>(blocks_.ranks));
  }

  void begin() override {
    divided_ = shares_sent_ = encoded_ = sent_ = 0;
    summed_ = handed_on_ = !has_blocks();
    reduced_ = returned_ = false;
    undecoded_ = blocks_.ranks;
    std::fill(decoded_.begin(), decoded_.end(), false);
    sends_.clear();
    if (ordered_) return;
    for (const Round round : {Round::share, Round::contribution, Round::mean, Round::handed_on})
      receive(round);
  }

  bool advance() override {
    if (done()) return false;
    bool moved = false;
    if (!summed_) {
      if (divided_ < blocks_.size) {
        divide_next();
        return true;
      }
      moved = send_shares() | poll(shares_);
      if (shares_sent_ < blocks_.size || any_pending(shares_)) return complete_sends() | moved;
      in_range("reduce", [&] { coder_->sum(); });
      summed_ = true;
      if (!ordered_) return true;
    }
    if (encoded_ < count_) {
      encode_next();
      return true;
    }
    moved |= send_encoded();
    if (!reduced_) {
      moved |= poll(arriving_);
      if (sent_ == count_ && !any_pending(arriving_)) {
        in_range("reduce", [&] { coder_->reduce(); });
        reduced_ = true;
        return_mean();
        return true;
      }
    } else {
      moved |= return_mean();
    }
    if (hand_on()) {
      if (ordered_) return true;
      moved = true;
    }
    if (decode_arrived()) return true;
    return complete_sends() | moved;
  }

  bool under_way() const override { return has_blocks() ? shares_sent_ == blocks_.size : sent_ == count_; }
  bool done() const override { return returned_ && handed_on_ && undecoded_ == 0 && sends_.empty(); }

  std::string waiting_for() const override {
    std::vector<int> ranks;
    const auto add = [&](int rank) { ranks.push_back(shared_.transport.rank_in_run(rank)); };
    // What comes late may wait for the ranks whose earlier messages have not come here either; what comes
    // from another block, for any rank of that block.
    for (const Round round : {Round::share, Round::contribution, Round::mean, Round::handed_on}) {
      const std::vector<Transport::Request>& requests = requests_of(round);
      for (int i = 0; i < static_cast<int>(requests.size()); ++i)
        if (requests[static_cast<std::size_t>(i)] != no_request) {
          const bool of_block = round == Round::contribution || round == Round::mean;
          for (int place = 0; of_block && place < blocks_.size; ++place) add(blocks_.rank_at(i, place));
          if (!of_block) add(sender(round, i));
        }
      if (!ranks.empty()) break;
    }
    if (ranks.empty())  // those that have not taken what was sent to them
      for (const Sent& sent : sends_) add(sent.to);
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks.empty() ? "its codec" : ranks_text(ranks);
  }

 private:
  enum class Round : std::uint8_t { share, contribution, mean, handed_on };

  bool has_blocks() const { return blocks_.size > 1; }
  std::vector<Transport::Request>& requests_of(Round round) {
    return round == Round::share          ? shares_
           : round == Round::contribution ? arriving_
           : round == Round::mean         ? returning_
                                          : handed_;
  }
  const std::vector<Transport::Request>& requests_of(Round round) const {
    return const_cast<ReduceBroadcast*>(this)->requests_of(round);
  }
  /// The rank that sends request i of a round.
  int sender(Round round, int i) const {
    return round == Round::share || round == Round::handed_on ? blocks_.rank_at(block_, i)
                                                              : blocks_.rank_at(i, place_);
  }
  std::span<std::byte> room_for(Round round, int i) {
    switch (round) {
      case Round::share:
        return coder_->incoming_share(i);
      case Round::contribution:
        return coder_->incoming(i);
      case Round::mean:
        return coder_->mean(first_ + i);
      default:
        return coder_->means(i);
    }
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
  static bool any_pending(const std::vector<Transport::Request>& requests) {
    return std::any_of(requests.begin(), requests.end(), [](auto r) { return r != no_request; });
  }
  bool complete_sends() {
    return std::erase_if(sends_, [this](Sent& s) { return complete(s.request); }) > 0;
  }

  int tag(Round round) const { return static_cast<int>(unit_.number % 4096) * 4 + static_cast<int>(round); }
  void send(std::span<const std::byte> bytes, int to, Round round) {
    if (bytes.empty()) return;
    sends_.push_back({shared_.transport.isend(bytes, to, tag(round)), to});
    shared_.bytes_sent += bytes.size();
    if (blocks_.block_of(to) != block_) shared_.bytes_between += bytes.size();
  }
  void receive(Round round) {
    if (!has_blocks() && (round == Round::share || round == Round::handed_on)) return;
    std::vector<Transport::Request>& requests = requests_of(round);
    for (int i = 0; i < static_cast<int>(requests.size()); ++i) {
      const int from = sender(round, i);
      const auto bytes = from == rank_ ? std::span<std::byte>() : room_for(round, i);
      requests[static_cast<std::size_t>(i)] =
          bytes.empty() ? no_request : shared_.transport.irecv(bytes, from, tag(round));
    }
  }
  /// Sends messages of a round as one group, in which an ordered transport also receives them.
  template <class Sends>
  void group(Round round, const Sends& sends) {
    shared_.transport.begin_group();
    if (ordered_) receive(round);
    sends();
    shared_.transport.end_group();
    if (ordered_) coder_->queued();
  }

  // The next rank's part first and the own part last: ranks begin with different owners.
  int place_in_turn(int turn) const { return (place_ + 1 + turn) % blocks_.size; }
  int block_in_turn(int turn) const { return (block_ + 1 + turn) % count_; }

  void divide_next() {
    next_.clear();
    const int last = std::min(blocks_.size, divided_ + coder_->owners_at_once());
    for (; divided_ < last; ++divided_) next_.push_back(place_in_turn(divided_));
    in_range("encode", [&] { coder_->divide(next_); });
    send_shares();
  }

  bool send_shares() {
    if (shares_sent_ == divided_ || !coder_->ready()) return false;
    group(Round::share, [&] {
      for (; shares_sent_ < divided_; ++shares_sent_)
        if (const int place = place_in_turn(shares_sent_); place != place_)
          send(coder_->share(place), blocks_.rank_at(block_, place), Round::share);
    });
    return true;
  }

  void encode_next() {
    next_.clear();
    const int last = std::min(count_, encoded_ + coder_->owners_at_once());
    for (; encoded_ < last; ++encoded_) next_.push_back(first_ + block_in_turn(encoded_));
    in_range("encode", [&] { coder_->encode(next_); });
    send_encoded();
  }

  bool send_encoded() {
    if (sent_ == encoded_ || !coder_->ready()) return false;
    group(Round::contribution, [&] {
      for (; sent_ < encoded_; ++sent_)
        if (const int block = block_in_turn(sent_); block != block_)
          send(coder_->outgoing(first_ + block), blocks_.rank_at(block, place_), Round::contribution);
    });
    return true;
  }

  bool return_mean() {
    if (returned_ || !coder_->ready()) return false;
    group(Round::mean, [&] {
      for (int turn = 0; turn + 1 < count_; ++turn)
        send(coder_->mean(own_), blocks_.rank_at(block_in_turn(turn), place_), Round::mean);
    });
    returned_ = true;
    return true;
  }

  bool hand_on() {
    if (handed_on_ || !returned_) return false;
    poll(returning_);
    if (any_pending(returning_)) return false;
    group(Round::handed_on, [&] {
      for (int turn = 0; turn + 1 < blocks_.size; ++turn)
        send(coder_->means(place_), blocks_.rank_at(block_, place_in_turn(turn)), Round::handed_on);
    });
    handed_on_ = true;
    return true;
  }

  /// Whether an owner's mean is here.
  bool has_mean(int owner) {
    const int rank = blocks_.rank_of(owner);
    if (rank == rank_) return reduced_;
    if (blocks_.place_of(rank) != place_)
      return (!ordered_ || handed_on_) && complete(handed_[static_cast<std::size_t>(blocks_.place_of(rank))]);
    return (!ordered_ || returned_) && complete(returning_[static_cast<std::size_t>(blocks_.block_of(rank))]);
  }

  bool decode_arrived() {
    next_.clear();
    const auto max_owners = static_cast<std::size_t>(coder_->owners_at_once());
    for (int shift = 0; shift < blocks_.ranks && next_.size() < max_owners; ++shift) {
      const int owner = blocks_.owner_of((rank_ + shift) % blocks_.ranks);
      const auto o = static_cast<std::size_t>(owner);
      if (decoded_[o] || !has_mean(owner)) continue;
      next_.push_back(owner);
      decoded_[o] = true;
      --undecoded_;
    }
    if (next_.empty()) return false;
    in_range("decode", [&] { coder_->decode(next_); });
    return true;
  }

  const bool ordered_;
  const RankBlocks blocks_;
  const int rank_, block_, place_;
  const int count_, first_, own_;  // owners at this place; their first; this rank as an owner
  struct Sent {
    Transport::Request request;
    int to;
  };
  std::vector<Transport::Request> shares_, arriving_, returning_, handed_;  // by place, block, block, place
  std::vector<Sent> sends_;
  std::vector<bool> decoded_;
  std::vector<int> next_;              // places or owners of the current call
  int divided_ = 0, shares_sent_ = 0;  // places whose share is made, and sent
  int encoded_ = 0, sent_ = 0;         // owners whose part is encoded, and sent
  int undecoded_ = 0;
  bool summed_ = false, reduced_ = false, returned_ = false, handed_on_ = false;
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
    if (shared_.transport.ordered()) coder_->queued();
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
  if (has_owners(collective)) return std::make_unique<ReduceBroadcast>(shared, std::move(coder));
  return std::make_unique<Summed>(shared, std::move(coder), collective == Collective::simulated);
}

}  // namespace lpsgd
