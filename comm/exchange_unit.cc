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
        self_(shared.self()),
        decoded_(static_cast<std::size_t>(self_.blocks.ranks)) {
    for (const Round round : rounds)
      requests(round).assign(static_cast<std::size_t>(peers(round)), no_request);
    sends_.reserve(2 * static_cast<std::size_t>(self_.owners() + self_.blocks.size));
    next_.reserve(static_cast<std::size_t>(self_.blocks.ranks));
  }

  void begin() override {
    shares_ = contributions_ = {};
    summed_ = handed_on_ = !self_.has_blocks();
    reduced_ = returned_ = false;
    undecoded_ = self_.blocks.ranks;
    std::fill(decoded_.begin(), decoded_.end(), false);
    sends_.clear();
    if (ordered_) return;
    for (const Round round : rounds) receive(round);
  }

  bool advance() override {
    if (done()) return false;
    bool moved = false;
    if (!summed_) {
      if (shares_.made < peers(Round::share)) {
        make_next(Round::share);
        return true;
      }
      moved = send_made(Round::share) | poll(Round::share);
      if (!is_sent(Round::share) || any_pending(Round::share)) return complete_sends() | moved;
      in_range("reduce", [&] { coder_->sum(); });
      summed_ = true;
      if (!ordered_) return true;
    }
    if (contributions_.made < peers(Round::contribution)) {
      make_next(Round::contribution);
      return true;
    }
    moved |= send_made(Round::contribution);
    if (!reduced_) {
      moved |= poll(Round::contribution);
      if (is_sent(Round::contribution) && !any_pending(Round::contribution)) {
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

  bool under_way() const override { return is_sent(self_.has_blocks() ? Round::share : Round::contribution); }
  bool done() const override { return returned_ && handed_on_ && undecoded_ == 0 && sends_.empty(); }

  std::string waiting_for() const override {
    std::vector<int> ranks;
    const auto add = [&](int rank) { ranks.push_back(shared_.transport.rank_in_run(rank)); };
    // What comes late may wait for the ranks whose earlier messages have not come here either; what comes
    // from another block, for any rank of that block.
    for (const Round round : rounds) {
      for (int i = 0; i < peers(round); ++i)
        if (requests(round)[static_cast<std::size_t>(i)] != no_request) {
          if (is_within_block(round)) add(peer(round, i));
          for (int place = 0; !is_within_block(round) && place < self_.blocks.size; ++place)
            add(self_.blocks.rank_at(i, place));
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
  static constexpr Round rounds[] = {Round::share, Round::contribution, Round::mean, Round::handed_on};

  // A round's messages go to the ranks of the block, by place, or to those at this place, by block; and come
  // from there.
  static bool is_within_block(Round round) { return round == Round::share || round == Round::handed_on; }
  int peers(Round round) const { return is_within_block(round) ? self_.blocks.size : self_.owners(); }
  int own(Round round) const { return is_within_block(round) ? self_.place() : self_.block(); }
  int peer(Round round, int i) const {
    return is_within_block(round) ? self_.blocks.rank_at(self_.block(), i)
                                  : self_.blocks.rank_at(i, self_.place());
  }
  /// The next peer's message first and the own one last: ranks begin with different peers.
  int in_turn(Round round, int turn) const { return (own(round) + 1 + turn) % peers(round); }

  using Requests = std::vector<Transport::Request>;
  Requests& requests(Round round) { return requests_[static_cast<std::size_t>(round)]; }
  const Requests& requests(Round round) const { return requests_[static_cast<std::size_t>(round)]; }

  std::span<std::byte> room_for(Round round, int i) {
    switch (round) {
      case Round::share:
        return coder_->incoming_share(i);
      case Round::contribution:
        return coder_->incoming(i);
      case Round::mean:
        return coder_->mean(self_.first_owner() + i);
      default:
        return coder_->means(i);
    }
  }

  bool complete(Transport::Request& request) {
    if (request != no_request && shared_.transport.test(request)) request = no_request;
    return request == no_request;
  }
  bool poll(Round round) {
    bool moved = false;
    for (Transport::Request& request : requests(round))
      if (request != no_request && complete(request)) moved = true;
    return moved;
  }
  bool any_pending(Round round) const {
    const Requests& all = requests(round);
    return std::any_of(all.begin(), all.end(), [](auto r) { return r != no_request; });
  }
  bool complete_sends() {
    return std::erase_if(sends_, [this](Sent& s) { return complete(s.request); }) > 0;
  }

  int tag(Round round) const { return static_cast<int>(unit_.number % 4096) * 4 + static_cast<int>(round); }
  void send(std::span<const std::byte> bytes, Round round, int i) {
    if (bytes.empty()) return;
    const int to = peer(round, i);
    sends_.push_back({shared_.transport.isend(bytes, to, tag(round)), to});
    shared_.bytes_sent += bytes.size();
    if (!is_within_block(round)) shared_.bytes_between += bytes.size();
  }
  void receive(Round round) {
    if (is_within_block(round) && !self_.has_blocks()) return;
    for (int i = 0; i < peers(round); ++i) {
      const auto bytes = i == own(round) ? std::span<std::byte>() : room_for(round, i);
      requests(round)[static_cast<std::size_t>(i)] =
          bytes.empty() ? no_request : shared_.transport.irecv(bytes, peer(round, i), tag(round));
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
  void send_to_all(std::span<const std::byte> bytes, Round round) {
    group(round, [&] {
      for (int turn = 0; turn + 1 < peers(round); ++turn) send(bytes, round, in_turn(round, turn));
    });
  }

  /// Of the shares, or the contributions, how many are made and sent, the own one counted.
  struct Progress {
    int made = 0, sent = 0;
  };
  Progress& progress(Round round) { return round == Round::share ? shares_ : contributions_; }
  bool is_sent(Round round) const {
    return (round == Round::share ? shares_ : contributions_).sent == peers(round);
  }

  void make_next(Round round) {
    Progress& now = progress(round);
    const bool divides = round == Round::share;
    next_.clear();
    const int last = std::min(peers(round), now.made + coder_->owners_at_once());
    for (; now.made < last; ++now.made)
      next_.push_back((divides ? 0 : self_.first_owner()) + in_turn(round, now.made));
    in_range("encode", [&] { divides ? coder_->divide(next_) : coder_->encode(next_); });
    send_made(round);
  }

  bool send_made(Round round) {
    Progress& now = progress(round);
    if (now.sent == now.made || !coder_->ready()) return false;
    group(round, [&] {
      for (; now.sent < now.made; ++now.sent) {
        const int i = in_turn(round, now.sent);
        if (i == own(round)) continue;
        send(round == Round::share ? coder_->share(i) : coder_->outgoing(self_.first_owner() + i), round, i);
      }
    });
    return true;
  }

  bool return_mean() {
    if (returned_ || !coder_->ready()) return false;
    send_to_all(coder_->mean(self_.owner()), Round::mean);
    returned_ = true;
    return true;
  }

  bool hand_on() {
    if (handed_on_ || !returned_) return false;
    poll(Round::mean);
    if (any_pending(Round::mean)) return false;
    send_to_all(coder_->means(self_.place()), Round::handed_on);
    handed_on_ = true;
    return true;
  }

  /// Whether an owner's mean is here.
  bool has_mean(int owner) {
    const int block = self_.blocks.block_of_owner(owner), place = self_.blocks.place_of_owner(owner);
    if (owner == self_.owner()) return reduced_;
    const bool is_handed_on = place != self_.place();
    if (ordered_ && !(is_handed_on ? handed_on_ : returned_)) return false;
    return is_handed_on ? complete(requests(Round::handed_on)[static_cast<std::size_t>(place)])
                        : complete(requests(Round::mean)[static_cast<std::size_t>(block)]);
  }

  bool decode_arrived() {
    next_.clear();
    const auto max_owners = static_cast<std::size_t>(coder_->owners_at_once());
    const int ranks = self_.blocks.ranks;
    for (int shift = 0; shift < ranks && next_.size() < max_owners; ++shift) {
      const int owner = self_.blocks.owner_of((self_.rank + shift) % ranks);
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
  const RankPlace self_;
  struct Sent {
    Transport::Request request;
    int to;
  };
  Requests requests_[std::size(rounds)];  // by round, then as peers()
  std::vector<Sent> sends_;
  std::vector<bool> decoded_;  // by owner
  std::vector<int> next_;      // places or owners of the current call
  Progress shares_, contributions_;
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
