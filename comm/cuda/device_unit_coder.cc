// A unit on a device: its messages, the jobs of its segments, and the events that order their work.
#include <algorithm>
#include <deque>
#include <map>
#include <string>

#include "comm/cuda/device_coder.h"

namespace lpsgd {
namespace {

using Work = CodecClock::Work;

class DeviceUnitCoder final : public UnitCoder {
 public:
  DeviceUnitCoder(DeviceCoder& coder, std::span<const NumberedUnit> units);

  bool free() const override { return queued_ || (staged_ ? uploaded_ : decoded_).done(); }
  void start(NumberedUnit unit) override {
    unit_ = unit;
    jobs_ = &units_.at(unit.number);
    std::swap(last_decoded_, decoded_);
  }
  std::span<std::byte> outgoing(int owner) override {
    return {outgoing_.wire() + outgoing_at(owner), unit_.unit->message_bytes(owner)};
  }
  std::span<std::byte> mean(int owner) override { return of(owner, means_.wire()); }
  std::span<std::byte> means(int place) override {
    return of(blocks_.first_owner(place), means_.wire(), count_);
  }
  std::span<std::byte> incoming(int block) override {
    return {incoming_.wire() + incoming_at(block), unit_.unit->message_bytes(own_)};
  }
  std::span<std::byte> share(int place) override {
    return {shares_.wire() + share_at(place), share_bytes(place)};
  }
  std::span<std::byte> incoming_share(int place) override {
    return {incoming_shares_.wire() + incoming_share_at(place), share_bytes(place_)};
  }
  int owners_at_once() const override { return blocks_.ranks; }
  void queued() override { arrived_.record(streams_.transport); }
  bool ready() const override { return queued_ || ready_.done(); }

  void divide(std::span<const int>) override;
  void sum() override;
  void encode(std::span<const int>) override;
  void reduce() override;
  void decode(std::span<const int> owners) override;
  std::span<float> pack() override {
    encode({});
    return {reinterpret_cast<float*>(outgoing_.wire()),
            static_cast<std::size_t>(count_values(unit_.unit->segments))};
  }
  void unpack() override { decode_outgoing(1.0f / static_cast<float>(blocks_.ranks)); }
  void decode_own() override { decode_outgoing(1.0f); }
  std::span<float> zeros() override {
    return {reinterpret_cast<float*>(zeros_.wire()),
            (unit_.unit->bytes() + sizeof(float) - 1) / sizeof(float)};
  }

 private:
  /// Messages: the device codes them in `device`; the transport uses `host` if they are staged.
  struct Messages {
    DeviceBuffer<std::byte> device;
    PinnedBuffer<std::byte> host;  // empty unless messages are staged
    std::byte* code() { return device.data(); }
    std::byte* wire() { return host.size() > 0 ? host.data() : device.data(); }
  };
  /// The jobs of one codec in a unit.
  struct Group {
    std::unique_ptr<CudaBatch> encode, reduce, decode;  // segments at the own place; the own ones; all
    std::unique_ptr<CudaBatch> check;                   // instead of these, for untouched tensors
    std::vector<std::size_t> begin;  // jobs of decode: owner o's are [begin[o], begin[o+1])
  };

  /// The jobs of a unit.
  struct Jobs {
    std::vector<Group> groups;
    std::unique_ptr<CudaBatch> copy, sum;  // only with blocks: into shares_; of the shares
  };

  bool has_blocks() const { return blocks_.size > 1; }
  int first_owner() const { return blocks_.first_owner(place_); }
  Messages allocate(std::size_t bytes) const {
    return {{device_, encoding_room(bytes)}, {device_, staged_ ? bytes : 0}};
  }
  Jobs make_jobs(const Unit& unit);
  std::vector<Group> make_groups(const Unit& unit);
  std::span<std::byte> of(int owner, std::byte* buffer, int count = 1) const {
    return unit_.unit->message_of(owner, {buffer, unit_.unit->bytes()}, count);
  }
  // Where messages begin in their buffers.
  std::size_t outgoing_at(int owner) const {
    const std::vector<std::size_t>& message = unit_.unit->message;
    const std::size_t before = has_blocks() ? message[static_cast<std::size_t>(first_owner())] : 0;
    return message[static_cast<std::size_t>(owner)] - before;
  }
  std::size_t incoming_at(int block) const {
    return unit_.unit->message_bytes(own_) * static_cast<std::size_t>(block < block_ ? block : block - 1);
  }
  std::size_t share_bytes(int place) const {
    return static_cast<std::size_t>(unit_.unit->values[static_cast<std::size_t>(place)]) * sizeof(float);
  }
  std::size_t share_at(int place) const {
    std::size_t at = 0;
    for (int before = 0; before < place; ++before) at += share_bytes(before);
    return at;
  }
  std::size_t incoming_share_at(int place) const {
    return share_bytes(place_) * static_cast<std::size_t>(place < place_ ? place : place - 1);
  }
  void download(Messages& m, std::size_t from, std::size_t to) {
    if (from < to) copy_bytes(m.wire() + from, m.code() + from, to - from, streams_.download);
  }
  void upload(Messages& m, std::size_t from, std::size_t to) {
    if (from < to) copy_bytes(m.code() + from, m.wire() + from, to - from, streams_.upload);
  }
  /// Marks the messages just encoded as ready to send, after `copies` have downloaded them if they are
  /// staged.
  template <class Copies>
  void mark_ready(Copies copies) {
    if (!staged_) {
      ready_.record(streams_.codec);
      if (ordered_) streams_.transport.wait(ready_);
      return;
    }
    coded_.record(streams_.codec);
    streams_.download.wait(coded_);
    coder_.copied(DeviceCoder::Copies::to_host, copies);
    ready_.record(streams_.download);
  }
  /// Makes the coding that is queued next wait for messages, which `copies` upload if they are staged.
  template <class Copies>
  void wait_for_messages(Copies copies) {
    if (staged_) {
      streams_.upload.wait(last_decoded_);  // its coding reads the same memory
      coder_.copied(DeviceCoder::Copies::from_host, copies);
      uploaded_.record(streams_.upload);
      streams_.codec.wait(uploaded_);
    } else if (ordered_) {
      streams_.codec.wait(arrived_);
    }
  }
  void decode_outgoing(float weight);

  DeviceCoder& coder_;
  ExchangeShared& shared_;
  const CodingStreams& streams_;
  const Device device_ = coder_.device();
  const RankBlocks blocks_;
  const int block_, place_;
  const int count_, own_;  // owners at this place; this rank as an owner
  const bool ordered_;
  const bool queued_;  // the host does not wait for messages: the transport is ordered, or there is one rank
  const bool staged_;
  Messages outgoing_, incoming_, means_;  // by owner; by block; by owner
  Messages shares_, incoming_shares_;     // by place
  DeviceBuffer<float> mean_of_block_;     // of the owners at this place
  Messages zeros_;
  std::map<std::size_t, Jobs> units_;               // by number in the plan
  Event coded_{device_}, ready_{device_};           // messages may be copied; may be sent
  Event arrived_{device_}, uploaded_{device_};      // messages may be decoded
  Event decoded_{device_}, last_decoded_{device_};  // last decoding of this unit; of the previous one
  NumberedUnit unit_;
  Jobs* jobs_ = nullptr;
};

DeviceUnitCoder::DeviceUnitCoder(DeviceCoder& coder, std::span<const NumberedUnit> units)
    : coder_(coder),
      shared_(coder.shared()),
      streams_(coder.streams()),
      blocks_(shared_.blocks),
      block_(blocks_.block_of(shared_.transport.rank())),
      place_(blocks_.place_of(shared_.transport.rank())),
      count_(blocks_.count()),
      own_(blocks_.owner_of(shared_.transport.rank())),
      ordered_(shared_.transport.ordered()),
      queued_(ordered_ || (blocks_.ranks == 1 && has_owners(coder.collective()))),
      staged_(coder.staged() && !queued_) {
  const bool owners = has_owners(coder.collective());
  std::size_t bytes = 0, encoded = 0, own = 0, values = 0, summed = 0;
  for (const NumberedUnit& u : units) {
    bytes = std::max(bytes, u.unit->bytes());
    encoded =
        std::max(encoded, has_blocks() ? u.unit->message_bytes(first_owner(), count_) : u.unit->bytes());
    if (owners) own = std::max(own, u.unit->message_bytes(own_));
    if (!has_blocks()) continue;
    values = std::max(values, static_cast<std::size_t>(count_values(u.unit->segments)));
    summed = std::max(summed, static_cast<std::size_t>(u.unit->values[static_cast<std::size_t>(place_)]));
  }
  outgoing_ = allocate(encoded);
  if (owners) {
    means_ = allocate(bytes);
    incoming_ = allocate(own * static_cast<std::size_t>(count_ - 1));
  }
  if (has_blocks()) {
    shares_ = allocate(values * sizeof(float));
    incoming_shares_ = allocate(summed * sizeof(float) * static_cast<std::size_t>(blocks_.size - 1));
    mean_of_block_ = {device_, summed};
  }
  if (coder.collective() == Collective::simulated) zeros_ = allocate(bytes + sizeof(float));
  for (const NumberedUnit& u : units) {
    unit_ = u;
    units_[u.number] = make_jobs(*u.unit);
  }
}

DeviceUnitCoder::Jobs DeviceUnitCoder::make_jobs(const Unit& unit) {
  Jobs out{make_groups(unit), {}, {}};
  if (!has_blocks()) return out;
  const Codec float32(CodecSpec{}, 1);
  std::vector<CodingJob> copies, sums;
  std::deque<std::vector<const std::byte*>> contributions;
  for (int owner = 0; owner < unit.owners(); ++owner) {
    const int place = blocks_.place_of(blocks_.rank_of(owner));
    for (const Segment& s : unit.owned_by(owner)) {
      const std::size_t at = static_cast<std::size_t>(s.value) * sizeof(float);
      CodingJob& copy = copies.emplace_back(float32.job(0, s.n, s.tensor));
      copy.values = coder_.values(s.tensor) + s.first;
      copy.bytes = shares_.code() + share_at(place) + at;
      copy.non_finite = coder_.own_flag(s.tensor);
      if (place != place_) continue;
      CodingJob& sum = sums.emplace_back(float32.job(0, s.n, s.tensor));
      sum.bytes = reinterpret_cast<std::byte*>(mean_of_block_.data() + s.value);
      std::vector<const std::byte*>& from = contributions.emplace_back();
      for (int i = 0; i < blocks_.size; ++i)
        from.push_back(
            (i == place_ ? shares_.code() + share_at(i) : incoming_shares_.code() + incoming_share_at(i)) +
            at);
      sum.contributions = from.data();
      sum.ranks = blocks_.size;
    }
  }
  out.copy = std::make_unique<CudaBatch>(float32.spec(), device_, copies);
  if (!sums.empty()) out.sum = std::make_unique<CudaBatch>(float32.spec(), device_, sums);
  return out;
}

std::vector<DeviceUnitCoder::Group> DeviceUnitCoder::make_groups(const Unit& unit) {
  struct CodecJobs {
    CodecSpec codec;
    std::vector<CodingJob> encode, reduce, decode, check;
    std::vector<std::size_t> begin{0};
    std::deque<std::vector<const std::byte*>> contributions;  // of each reduce
  };
  std::map<std::string, CodecJobs> by_codec;
  const auto jobs_of = [&](std::size_t t) -> CodecJobs& {
    const CodecSpec& codec = shared_.tensors[t].codec->spec();
    CodecJobs& jobs = by_codec[to_text(codec)];
    jobs.codec = codec;
    return jobs;
  };
  for (const Segment& s : unit.segments) jobs_of(s.tensor);
  for (int owner = 0; owner < unit.owners(); ++owner) {
    for (auto& [key, jobs] : by_codec) jobs.begin.push_back(jobs.decode.size());
    const auto message = unit.message[static_cast<std::size_t>(owner)];
    for (const Segment& s : unit.owned_by(owner)) {
      DeviceTensor& kept = coder_.kept(s.tensor);
      CodecJobs& jobs = jobs_of(s.tensor);
      const CodingJob job = shared_.tensors[s.tensor].codec->job(s.first, s.n, s.tensor);
      float* values = coder_.values(s.tensor) + s.first;
      if (coder_.untouched(s.tensor)) {
        CodingJob& check = jobs.check.emplace_back(job);
        check.out = values;
        check.non_finite = coder_.own_flag(s.tensor);
        continue;
      }
      if (!has_blocks() || blocks_.place_of(blocks_.rank_of(owner)) == place_) {
        CodingJob& encode = jobs.encode.emplace_back(job);
        encode.values = has_blocks() ? mean_of_block_.data() + s.value : values;
        if (kept.residual1.size() > 0)
          encode.residual =
              kept.residual1.data() + s.first +
              shared_.tensors[s.tensor].residual1_shift[static_cast<std::size_t>(owner % count_)];
        encode.bytes = outgoing_.code() + outgoing_at(owner) + s.at;
        // With blocks the copies have told whose gradient it was.
        encode.non_finite = has_blocks() ? coder_.mean_flag(s.tensor) : coder_.own_flag(s.tensor);
        encode.error = coder_.errors(s.tensor);
      }
      CodingJob& decode = jobs.decode.emplace_back(job);
      decode.out = values;
      decode.bytes = (means_.code() ? means_.code() : outgoing_.code()) + message + s.at;
      decode.non_finite = coder_.mean_flag(s.tensor);
      jobs.begin.back() = jobs.decode.size();
      if (means_.code() == nullptr || owner != own_) continue;
      CodingJob& reduce = jobs.reduce.emplace_back(job);
      reduce.residual = kept.residual2.size() > 0
                            ? kept.residual2.data() + (s.first - shared_.tensors[s.tensor].own.first)
                            : nullptr;
      reduce.bytes = decode.bytes = means_.code() + message + s.at;
      std::vector<const std::byte*>& from = jobs.contributions.emplace_back();
      for (int block = 0; block < count_; ++block)
        from.push_back((block == block_ ? outgoing_.code() + outgoing_at(owner)
                                        : incoming_.code() + incoming_at(block)) +
                       s.at);
      reduce.contributions = from.data();
      reduce.ranks = count_;
    }
  }
  std::vector<Group> groups;
  for (auto& [key, jobs] : by_codec) {
    Group& group = groups.emplace_back();
    const auto batch = [&, &jobs = jobs](const std::vector<CodingJob>& from) {
      return from.empty() ? nullptr
                          : std::make_unique<CudaBatch>(
                                jobs.codec, device_, from,
                                has_blocks() ? CudaBatch::Tables::of_jobs : CudaBatch::Tables::of_tensors);
    };
    group.encode = batch(jobs.encode);
    group.reduce = batch(jobs.reduce);
    group.decode = batch(jobs.decode);
    group.check = batch(jobs.check);
    group.begin = std::move(jobs.begin);
  }
  return groups;
}

void DeviceUnitCoder::divide(std::span<const int>) {
  const Unit& unit = *unit_.unit;
  coder_.gradients_of(unit);
  coder_.coded(Work::encode, unit_.number, 0, 1,  // copies say nothing about the codec's speed
               [&] { jobs_->copy->encode(shared_.context(1), streams_.codec); });
  mark_ready([&] {
    download(shares_, 0, share_at(place_));
    download(shares_, share_at(place_) + share_bytes(place_), share_at(blocks_.size));
  });
}

void DeviceUnitCoder::sum() {
  wait_for_messages(
      [&] { upload(incoming_shares_, 0, share_bytes(place_) * static_cast<std::size_t>(blocks_.size - 1)); });
  coder_.coded(Work::decode, unit_.number, 0, 1, [&] {
    if (jobs_->sum) jobs_->sum->reduce(shared_.context(1), streams_.codec);
  });
}

void DeviceUnitCoder::encode(std::span<const int>) {
  const Unit& unit = *unit_.unit;
  if (!has_blocks()) coder_.gradients_of(unit);
  const std::span<const Segment> segments =
      has_blocks() ? unit.owned_by(first_owner(), count_) : std::span<const Segment>(unit.segments);
  coder_.coded(Work::encode, unit_.number, count_values(segments), 1, [&] {
    for (Group& group : jobs_->groups) {
      if (group.check) group.check->check(streams_.codec);
      if (group.encode) group.encode->encode(shared_.context(1), streams_.codec, coder_.step());
    }
  });
  mark_ready([&] {
    if (!has_owners(coder_.collective())) return download(outgoing_, 0, unit.bytes());
    const std::size_t own = outgoing_at(own_);
    download(outgoing_, 0, own);
    download(outgoing_, own + unit.message_bytes(own_), unit.message_bytes(first_owner(), count_));
  });
}

void DeviceUnitCoder::reduce() {
  const Unit& unit = *unit_.unit;
  wait_for_messages(
      [&] { upload(incoming_, 0, unit.message_bytes(own_) * static_cast<std::size_t>(count_ - 1)); });
  coder_.coded(Work::reduce, unit_.number, count_values(unit.owned_by(own_)), count_, [&] {
    for (Group& group : jobs_->groups)
      if (group.reduce) group.reduce->reduce(shared_.context(2), streams_.codec, coder_.step());
  });
  mark_ready([&] {
    const std::size_t at = unit.message[static_cast<std::size_t>(own_)];
    download(means_, at, at + unit.message_bytes(own_));
  });
}

void DeviceUnitCoder::decode(std::span<const int> owners) {
  const Unit& unit = *unit_.unit;
  std::vector<int> ascending(owners.begin(), owners.end());
  std::sort(ascending.begin(), ascending.end());
  wait_for_messages([&] {
    for (const int owner : ascending) {
      const std::size_t at = unit.message[static_cast<std::size_t>(owner)];
      if (owner != own_) upload(means_, at, at + unit.message_bytes(owner));
    }
  });
  std::int64_t values = 0;
  for (const int owner : ascending) values += count_values(unit.owned_by(owner));
  coder_.coded(Work::decode, unit_.number, values, 1, [&] {
    for (Group& group : jobs_->groups) {
      if (!group.decode) continue;
      for (auto from = ascending.begin(), to = from; from != ascending.end(); from = to) {
        while (to != ascending.end() && *to - *from == to - from) ++to;  // one launch for consecutive owners
        const std::size_t first = group.begin[static_cast<std::size_t>(*from)];
        const std::size_t last = group.begin[static_cast<std::size_t>(to[-1]) + 1];
        if (last > first) group.decode->decode(first, last, false, streams_.codec);
      }
    }
  });
  for (const int owner : ascending) coder_.decoded(unit.owned_by(owner));
  decoded_.record(streams_.codec);
}

void DeviceUnitCoder::decode_outgoing(float weight) {
  const Unit& unit = *unit_.unit;
  wait_for_messages([&] { upload(outgoing_, 0, unit.bytes()); });
  coder_.coded(Work::decode, unit_.number, count_values(unit.segments), 1, [&] {
    for (Group& group : jobs_->groups)
      if (group.decode) group.decode->decode(0, group.begin.back(), false, streams_.codec, weight);
  });
  coder_.decoded(unit.segments);
  decoded_.record(streams_.codec);
}

}  // namespace

std::unique_ptr<UnitCoder> DeviceCoder::make_unit_coder(std::span<const NumberedUnit> units) {
  for (const NumberedUnit& u : units)
    if (std::optional<Event>& event = submitted_[u.unit->ready_after - 1]; !event) event.emplace(device());
  return std::make_unique<DeviceUnitCoder>(*this, units);
}

}  // namespace lpsgd
