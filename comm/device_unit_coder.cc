// A unit on a device: its messages, the jobs of its segments, and the events that order their work.
#include <algorithm>
#include <deque>
#include <string>

#include "comm/device_coder.h"

namespace lpsgd {
namespace {

using Queue = CodingDevice::Queue;
using Work = CodecClock::Work;

class DeviceUnitCoder final : public UnitCoder {
 public:
  DeviceUnitCoder(DeviceCoder& coder, std::span<const NumberedUnit> units);

  bool free() const override { return queued_ || device_.done(staged_ ? *uploaded_ : *decoded_); }
  void start(NumberedUnit unit) override {
    unit_ = unit;
    jobs_ = &units_[unit.number];
    std::swap(before_, decoded_);
  }
  std::span<std::byte> outgoing(int owner) override { return of(owner, outgoing_.wire); }
  std::span<std::byte> mean(int owner) override { return of(owner, means_.wire); }
  std::span<std::byte> incoming(int rank) override {
    return {incoming_.wire + incoming_at(rank), unit_.unit->message_bytes(rank_)};
  }
  int owners_at_once() const override { return ranks_; }
  bool ready() const override { return queued_ || device_.done(*ready_); }

  void encode(std::span<const int>) override;
  void reduce() override;
  void decode(std::span<const int> owners) override;
  std::span<float> pack() override {
    encode({});
    return {reinterpret_cast<float*>(outgoing_.wire),
            static_cast<std::size_t>(count_values(unit_.unit->segments))};
  }
  void unpack() override { decode_outgoing(1.0f / static_cast<float>(ranks_)); }
  void decode_own() override { decode_outgoing(1.0f); }
  std::span<float> zeros() override {
    return {zeros_, (unit_.unit->bytes() + sizeof(float) - 1) / sizeof(float)};
  }

 private:
  /// Messages as the device codes them, and where the transport finds them.
  struct Messages {
    std::byte *code = nullptr, *wire = nullptr;
  };
  /// The jobs of one codec in a unit.
  struct Group {
    std::unique_ptr<JobBatch> encode, reduce, decode;  // all segments; the own ones; all
    std::unique_ptr<JobBatch> check;                   // instead of these, where nothing is coded
    std::vector<std::size_t> begin;                    // jobs of decode: owner o's are [begin[o], begin[o+1])
  };

  Messages allocate(std::size_t bytes) {
    Messages m;
    m.code = device_.device_memory(std::max<std::size_t>(bytes, 1));
    m.wire = staged_ ? device_.host_memory(std::max<std::size_t>(bytes, 1)) : m.code;
    return m;
  }
  std::vector<Group> make_groups(const Unit& unit);
  std::span<std::byte> of(int owner, std::byte* buffer) const {
    return unit_.unit->message_of(owner, {buffer, unit_.unit->bytes()});
  }
  std::size_t incoming_at(int rank) const {
    return unit_.unit->message_bytes(rank_) * static_cast<std::size_t>(rank < rank_ ? rank : rank - 1);
  }
  void download(const Messages& m, std::size_t from, std::size_t to) {
    if (to > from) device_.copy(m.wire + from, m.code + from, to - from, Queue::download);
  }
  void upload(const Messages& m, std::size_t from, std::size_t to) {
    if (to > from) device_.copy(m.code + from, m.wire + from, to - from, Queue::upload);
  }
  /// What was just coded may be sent once it is where the transport finds it; `copies` takes it there.
  template <class Copies>
  void coded_may_go(Copies copies) {
    if (!staged_) {
      device_.record(*ready_, Queue::codec);
      if (ordered_) device_.wait(Queue::transport, *ready_);
      return;
    }
    device_.record(*coded_, Queue::codec);
    device_.wait(Queue::download, *coded_);
    copies();
    device_.record(*ready_, Queue::download);
  }
  /// What follows reads messages; `copies` brings them from where the transport left them.
  template <class Copies>
  void messages_came(Copies copies) {
    if (staged_) {
      device_.wait(Queue::upload, *before_);  // the last unit's coding reads the same memory
      copies();
      device_.record(*uploaded_, Queue::upload);
      device_.wait(Queue::codec, *uploaded_);
    } else if (ordered_) {
      device_.record(*arrived_, Queue::transport);
      device_.wait(Queue::codec, *arrived_);
    }
  }
  void decode_outgoing(float weight);

  DeviceCoder& coder_;
  ExchangeShared& shared_;
  CodingDevice& device_;
  const int rank_, ranks_;
  const bool ordered_;
  const bool queued_;  // no host looks at the messages: the transport is ordered, or there is nobody else
  const bool staged_;
  Messages outgoing_, incoming_, means_;  // by owner; by rank; by owner
  float* zeros_ = nullptr;
  std::vector<std::vector<Group>> units_;  // by number in the plan; empty for those of others
  // coded_: may be copied; ready_: may be sent; arrived_, uploaded_: may be decoded; decoded_: the last
  // decoding of this unit; before_: of the unit before.
  EventPtr coded_, ready_, arrived_, uploaded_, decoded_, before_;
  NumberedUnit unit_;
  std::vector<Group>* jobs_ = nullptr;
};

DeviceUnitCoder::DeviceUnitCoder(DeviceCoder& coder, std::span<const NumberedUnit> units)
    : coder_(coder),
      shared_(coder.shared()),
      device_(coder.device()),
      rank_(shared_.transport.rank()),
      ranks_(shared_.transport.size()),
      ordered_(shared_.transport.ordered()),
      queued_(ordered_ || (ranks_ == 1 && coder.collective() == Collective::reduce_broadcast)),
      staged_(coder.staged() && !queued_) {
  for (EventPtr* event : {&coded_, &ready_, &arrived_, &uploaded_, &decoded_, &before_})
    *event = device_.make_event(false);
  std::size_t bytes = 0, own = 0, last = 0;
  for (const NumberedUnit& u : units) {
    bytes = std::max(bytes, u.unit->bytes());
    last = std::max(last, u.number + 1);
    if (coder.collective() == Collective::reduce_broadcast) own = std::max(own, u.unit->message_bytes(rank_));
  }
  outgoing_ = allocate(bytes);
  if (coder.collective() == Collective::reduce_broadcast) {
    means_ = allocate(bytes);
    incoming_ = allocate(own * static_cast<std::size_t>(ranks_ - 1));
  }
  if (coder.collective() == Collective::simulated)
    zeros_ = reinterpret_cast<float*>(staged_ ? device_.host_memory(bytes + sizeof(float))
                                              : device_.device_memory(bytes + sizeof(float)));
  units_.resize(last);
  for (const NumberedUnit& u : units) {
    unit_ = u;
    units_[u.number] = make_groups(*u.unit);
  }
}

std::vector<DeviceUnitCoder::Group> DeviceUnitCoder::make_groups(const Unit& unit) {
  struct Jobs {
    CodecSpec codec;
    std::vector<CodingJob> encode, reduce, decode, check;
    std::vector<std::size_t> begin{0};
    std::deque<std::vector<const std::byte*>> contributions;  // of each reduce
  };
  std::vector<std::pair<std::string, Jobs>> by_codec;
  const auto jobs_of = [&](std::size_t t) -> Jobs& {
    const CodecSpec& codec = shared_.tensors[t].codec->spec();
    const std::string key = to_text(codec) + (coder_.untouched(t) ? " untouched" : "");
    const auto known =
        std::find_if(by_codec.begin(), by_codec.end(), [&](const auto& g) { return g.first == key; });
    if (known != by_codec.end()) return known->second;
    Jobs& jobs = by_codec.emplace_back(key, Jobs{}).second;
    jobs.codec = codec;
    return jobs;
  };
  for (const Segment& s : unit.segments) jobs_of(s.tensor);
  for (int owner = 0; owner < unit.owners(); ++owner) {
    for (auto& [key, jobs] : by_codec) jobs.begin.push_back(jobs.decode.size());
    const auto message = unit.message[static_cast<std::size_t>(owner)];
    for (const Segment& s : unit.owned_by(owner)) {
      const DeviceTensor& kept = coder_.kept(s.tensor);
      Jobs& jobs = jobs_of(s.tensor);
      const CodingJob job = shared_.tensors[s.tensor].codec->job(s.first, s.n, s.tensor);
      float* values = coder_.values(s.tensor) + s.first;
      if (coder_.untouched(s.tensor)) {
        CodingJob& check = jobs.check.emplace_back(job);
        check.out = values;
        check.non_finite = kept.own_flag;
        continue;
      }
      CodingJob& encode = jobs.encode.emplace_back(job);
      encode.values = values;
      encode.residual = kept.residual1 ? kept.residual1 + s.first : nullptr;
      encode.bytes = outgoing_.code + message + s.at;
      encode.non_finite = kept.own_flag;
      encode.error = kept.error;
      CodingJob& decode = jobs.decode.emplace_back(job);
      decode.out = values;
      decode.bytes = (means_.code ? means_.code : outgoing_.code) + message + s.at;
      decode.non_finite = kept.mean_flag;
      jobs.begin.back() = jobs.decode.size();
      if (means_.code == nullptr || owner != rank_) continue;
      CodingJob& reduce = jobs.reduce.emplace_back(job);
      reduce.residual =
          kept.residual2 ? kept.residual2 + (s.first - shared_.tensors[s.tensor].own.first) : nullptr;
      reduce.bytes = decode.bytes = means_.code + message + s.at;
      std::vector<const std::byte*>& from = jobs.contributions.emplace_back();
      for (int r = 0; r < ranks_; ++r)
        from.push_back((r == rank_ ? outgoing_.code + message : incoming_.code + incoming_at(r)) + s.at);
      reduce.contributions = from.data();
      reduce.ranks = ranks_;
    }
  }
  std::vector<Group> groups;
  for (auto& [key, jobs] : by_codec) {
    Group& group = groups.emplace_back();
    const auto batch = [&](std::vector<CodingJob>& from) {
      return from.empty() ? nullptr : device_.make_batch(jobs.codec, std::move(from));
    };
    group.encode = batch(jobs.encode);
    group.reduce = batch(jobs.reduce);
    group.decode = batch(jobs.decode);
    group.check = batch(jobs.check);
    group.begin = std::move(jobs.begin);
  }
  return groups;
}

void DeviceUnitCoder::encode(std::span<const int>) {
  const Unit& unit = *unit_.unit;
  coder_.gradients_of(unit);
  coder_.coded(Work::encode, unit_.number, count_values(unit.segments), 1, [&] {
    for (Group& group : *jobs_) {
      if (group.check) group.check->check();
      if (group.encode) group.encode->encode(shared_.context(1));
    }
  });
  coded_may_go([&] {
    if (coder_.collective() != Collective::reduce_broadcast) return download(outgoing_, 0, unit.bytes());
    const std::size_t own = unit.message[static_cast<std::size_t>(rank_)];
    download(outgoing_, 0, own);
    download(outgoing_, own + unit.message_bytes(rank_), unit.bytes());
  });
}

void DeviceUnitCoder::reduce() {
  const Unit& unit = *unit_.unit;
  messages_came(
      [&] { upload(incoming_, 0, unit.message_bytes(rank_) * static_cast<std::size_t>(ranks_ - 1)); });
  coder_.coded(Work::reduce, unit_.number, count_values(unit.owned_by(rank_)), ranks_, [&] {
    for (Group& group : *jobs_)
      if (group.reduce) group.reduce->reduce(shared_.context(2));
  });
  coded_may_go([&] {
    const std::size_t at = unit.message[static_cast<std::size_t>(rank_)];
    download(means_, at, at + unit.message_bytes(rank_));
  });
}

void DeviceUnitCoder::decode(std::span<const int> owners) {
  const Unit& unit = *unit_.unit;
  std::vector<int> ascending(owners.begin(), owners.end());
  std::sort(ascending.begin(), ascending.end());
  messages_came([&] {
    for (const int owner : ascending) {
      const std::size_t at = unit.message[static_cast<std::size_t>(owner)];
      if (owner != rank_) upload(means_, at, at + unit.message_bytes(owner));
    }
  });
  std::int64_t values = 0;
  for (const int owner : ascending) values += count_values(unit.owned_by(owner));
  coder_.coded(Work::decode, unit_.number, values, 1, [&] {
    for (Group& group : *jobs_) {
      if (!group.decode) continue;
      for (std::size_t i = 0; i < ascending.size();) {  // neighbours go together
        const auto from = static_cast<std::size_t>(ascending[i]);
        std::size_t to = from + 1;
        for (++i; i < ascending.size() && static_cast<std::size_t>(ascending[i]) == to; ++i) ++to;
        if (group.begin[to] > group.begin[from])
          group.decode->decode(group.begin[from], group.begin[to], 1.0f);
      }
    }
  });
  for (const int owner : ascending) coder_.decoded(unit.owned_by(owner));
  device_.record(*decoded_, Queue::codec);
}

void DeviceUnitCoder::decode_outgoing(float weight) {
  const Unit& unit = *unit_.unit;
  messages_came([&] { upload(outgoing_, 0, unit.bytes()); });
  coder_.coded(Work::decode, unit_.number, count_values(unit.segments), 1, [&] {
    for (Group& group : *jobs_)
      if (group.decode) group.decode->decode(0, group.begin.back(), weight);
  });
  coder_.decoded(unit.segments);
  device_.record(*decoded_, Queue::codec);
}

}  // namespace

std::unique_ptr<UnitCoder> make_device_unit_coder(DeviceCoder& coder, std::span<const NumberedUnit> units) {
  return std::make_unique<DeviceUnitCoder>(coder, units);
}

}  // namespace lpsgd
