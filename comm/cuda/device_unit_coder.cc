// A unit on a device: its messages, the jobs of its segments, and the events that order their work.
#include <algorithm>
#include <deque>
#include <map>
#include <string>

#include "comm/cuda/device_coder.h"
#include "comm/unit_layout.h"

namespace lpsgd {
namespace {

using Work = CodecClock::Work;

class DeviceUnitCoder final : public UnitCoder {
 public:
  DeviceUnitCoder(DeviceCoder& coder, std::span<const NumberedUnit> units);

  bool free() const override { return queued_ || (staged_ ? uploaded_ : decoded_).done(); }
  void start(NumberedUnit unit) override {
    number_ = unit.number;
    layout_.set(*unit.unit);
    jobs_ = &units_.at(unit.number);
    std::swap(last_decoded_, decoded_);
  }
  std::span<std::byte> outgoing(int owner) override { return layout_.outgoing(owner).of(outgoing_.wire()); }
  std::span<std::byte> incoming(int block) override { return layout_.incoming(block).of(incoming_.wire()); }
  std::span<std::byte> mean(int owner) override { return layout_.mean(owner).of(means_.wire()); }
  std::span<std::byte> share(int place) override { return layout_.share(place).of(shares_.wire()); }
  std::span<std::byte> incoming_share(int place) override {
    return layout_.incoming_share(place).of(incoming_shares_.wire());
  }
  std::span<std::byte> means(int place) override {
    return layout_.mean(self_.blocks.first_owner(place), self_.owners()).of(means_.wire());
  }
  int owners_at_once() const override { return self_.blocks.ranks; }
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
            static_cast<std::size_t>(count_values(unit().segments))};
  }
  void unpack() override { decode_outgoing(1.0f / static_cast<float>(self_.blocks.ranks)); }
  void decode_own() override { decode_outgoing(1.0f); }
  std::span<float> zeros() override {
    return {reinterpret_cast<float*>(zeros_.wire()), (unit().bytes() + sizeof(float) - 1) / sizeof(float)};
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

  const Unit& unit() const { return layout_.unit(); }
  Messages allocate(std::size_t bytes) const {
    return {{device_, encoding_room(bytes)}, {device_, staged_ ? bytes : 0}};
  }
  Jobs make_jobs();
  std::vector<Group> make_groups();
  void download(Messages& m, const ByteRange& range) {
    if (range.bytes > 0) copy_bytes(m.wire() + range.at, m.code() + range.at, range.bytes, streams_.download);
  }
  /// All of `all`, which begins the buffer, but `own`, which is not sent.
  void download_others(Messages& m, const ByteRange& all, const ByteRange& own) {
    download(m, {0, own.at});
    download(m, {own.end(), all.end() - own.end()});
  }
  void upload(Messages& m, const ByteRange& range) {
    if (range.bytes > 0) copy_bytes(m.code() + range.at, m.wire() + range.at, range.bytes, streams_.upload);
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
  const RankPlace self_;
  UnitLayout layout_;  // of the current unit
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
  std::size_t number_ = 0;
  Jobs* jobs_ = nullptr;
};

DeviceUnitCoder::DeviceUnitCoder(DeviceCoder& coder, std::span<const NumberedUnit> units)
    : coder_(coder),
      shared_(coder.shared()),
      streams_(coder.streams()),
      self_(shared_.self()),
      layout_(self_),
      ordered_(shared_.transport.ordered()),
      queued_(ordered_ || (self_.blocks.ranks == 1 && has_owners(coder.collective()))),
      staged_(coder.staged() && !queued_) {
  const UnitLayout::Room room = layout_.room(units);
  outgoing_ = allocate(room.outgoing);
  if (has_owners(coder.collective())) {
    means_ = allocate(room.means);
    incoming_ = allocate(room.incoming);
  }
  if (self_.has_blocks()) {
    shares_ = allocate(room.shares);
    incoming_shares_ = allocate(room.incoming_shares);
    mean_of_block_ = {device_, room.summed};
  }
  if (coder.collective() == Collective::simulated) zeros_ = allocate(room.means + sizeof(float));
  for (const NumberedUnit& u : units) {
    layout_.set(*u.unit);
    units_[u.number] = make_jobs();
  }
}

DeviceUnitCoder::Jobs DeviceUnitCoder::make_jobs() {
  Jobs out{make_groups(), {}, {}};
  if (!self_.has_blocks()) return out;
  const Codec float32(CodecSpec{}, 1);
  std::vector<CodingJob> copies, sums;
  std::deque<std::vector<const std::byte*>> contributions;
  for (int owner = 0; owner < unit().owners(); ++owner) {
    const int place = self_.blocks.place_of_owner(owner);
    for (const Segment& s : unit().owned_by(owner)) {
      const std::size_t at = UnitLayout::in_share(s);
      CodingJob& copy = copies.emplace_back(float32.job(0, s.n, s.tensor));
      copy.values = coder_.values(s.tensor) + s.first;
      copy.bytes = shares_.code() + layout_.share(place).at + at;
      copy.non_finite = coder_.own_flag(s.tensor);
      if (place != self_.place()) continue;
      CodingJob& sum = sums.emplace_back(float32.job(0, s.n, s.tensor));
      sum.bytes = reinterpret_cast<std::byte*>(mean_of_block_.data() + s.value);
      std::vector<const std::byte*>& from = contributions.emplace_back();
      for (int i = 0; i < self_.blocks.size; ++i)
        from.push_back((i == self_.place() ? shares_.code() + layout_.share(i).at
                                           : incoming_shares_.code() + layout_.incoming_share(i).at) +
                       at);
      sum.contributions = from.data();
      sum.ranks = self_.blocks.size;
    }
  }
  out.copy = std::make_unique<CudaBatch>(float32.spec(), device_, copies);
  if (!sums.empty()) out.sum = std::make_unique<CudaBatch>(float32.spec(), device_, sums);
  return out;
}

std::vector<DeviceUnitCoder::Group> DeviceUnitCoder::make_groups() {
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
  for (const Segment& s : unit().segments) jobs_of(s.tensor);
  for (int owner = 0; owner < unit().owners(); ++owner) {
    for (auto& [key, jobs] : by_codec) jobs.begin.push_back(jobs.decode.size());
    const std::size_t message = layout_.mean(owner).at;
    const int block = self_.blocks.block_of_owner(owner);
    for (const Segment& s : unit().owned_by(owner)) {
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
      if (self_.blocks.place_of_owner(owner) == self_.place()) {
        CodingJob& encode = jobs.encode.emplace_back(job);
        encode.values = self_.has_blocks() ? mean_of_block_.data() + s.value : values;
        if (kept.residual1.size() > 0)
          encode.residual = kept.residual1.data() + shared_.tensors[s.tensor].in_residual1(s.first, block);
        encode.bytes = outgoing_.code() + layout_.outgoing(owner).at + s.at;
        // With blocks the copies have told whose gradient it was.
        encode.non_finite = self_.has_blocks() ? coder_.mean_flag(s.tensor) : coder_.own_flag(s.tensor);
        encode.error = coder_.errors(s.tensor);
      }
      CodingJob& decode = jobs.decode.emplace_back(job);
      decode.out = values;
      decode.bytes = (means_.code() ? means_.code() : outgoing_.code()) + message + s.at;
      decode.non_finite = coder_.mean_flag(s.tensor);
      jobs.begin.back() = jobs.decode.size();
      if (means_.code() == nullptr || owner != self_.owner()) continue;
      CodingJob& reduce = jobs.reduce.emplace_back(job);
      reduce.residual = kept.residual2.size() > 0
                            ? kept.residual2.data() + (s.first - shared_.tensors[s.tensor].own.first)
                            : nullptr;
      reduce.bytes = decode.bytes = means_.code() + message + s.at;
      std::vector<const std::byte*>& from = jobs.contributions.emplace_back();
      for (int b = 0; b < self_.owners(); ++b)
        from.push_back((b == self_.block() ? outgoing_.code() + layout_.outgoing(owner).at
                                           : incoming_.code() + layout_.incoming(b).at) +
                       s.at);
      reduce.contributions = from.data();
      reduce.ranks = self_.owners();
    }
  }
  std::vector<Group> groups;
  for (auto& [key, jobs] : by_codec) {
    Group& group = groups.emplace_back();
    const auto batch = [&, &jobs = jobs](const std::vector<CodingJob>& from) {
      return from.empty() ? nullptr
                          : std::make_unique<CudaBatch>(jobs.codec, device_, from,
                                                        self_.has_blocks() ? CudaBatch::Tables::of_jobs
                                                                           : CudaBatch::Tables::of_tensors);
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
  coder_.gradients_of(unit());
  coder_.coded(Work::encode, number_, 0, 1,  // copies say nothing about the codec's speed
               [&] { jobs_->copy->encode(shared_.context(1), streams_.codec); });
  mark_ready([&] { download_others(shares_, layout_.shares(), layout_.share(self_.place())); });
}

void DeviceUnitCoder::sum() {
  wait_for_messages([&] { upload(incoming_shares_, layout_.incoming_shares()); });
  coder_.coded(Work::decode, number_, 0, 1, [&] {
    if (jobs_->sum) jobs_->sum->reduce(shared_.context(1), streams_.codec);
  });
}

void DeviceUnitCoder::encode(std::span<const int>) {
  if (!self_.has_blocks()) coder_.gradients_of(unit());
  const std::span<const Segment> segments = self_.has_blocks()
                                                ? unit().owned_by(self_.first_owner(), self_.owners())
                                                : std::span<const Segment>(unit().segments);
  coder_.coded(Work::encode, number_, count_values(segments), 1, [&] {
    for (Group& group : jobs_->groups) {
      if (group.check) group.check->check(streams_.codec);
      if (group.encode) group.encode->encode(shared_.context(1), streams_.codec, coder_.step());
    }
  });
  mark_ready([&] {
    if (!has_owners(coder_.collective())) return download(outgoing_, {0, unit().bytes()});
    download_others(outgoing_, layout_.outgoing(), layout_.outgoing(self_.owner()));
  });
}

void DeviceUnitCoder::reduce() {
  wait_for_messages([&] { upload(incoming_, layout_.incoming()); });
  coder_.coded(Work::reduce, number_, count_values(unit().owned_by(self_.owner())), self_.owners(), [&] {
    for (Group& group : jobs_->groups)
      if (group.reduce) group.reduce->reduce(shared_.context(2), streams_.codec, coder_.step());
  });
  mark_ready([&] { download(means_, layout_.mean(self_.owner())); });
}

void DeviceUnitCoder::decode(std::span<const int> owners) {
  std::vector<int> ascending(owners.begin(), owners.end());
  std::sort(ascending.begin(), ascending.end());
  wait_for_messages([&] {
    for (const int owner : ascending)
      if (owner != self_.owner()) upload(means_, layout_.mean(owner));
  });
  std::int64_t values = 0;
  for (const int owner : ascending) values += count_values(unit().owned_by(owner));
  coder_.coded(Work::decode, number_, values, 1, [&] {
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
  for (const int owner : ascending) coder_.decoded(unit().owned_by(owner));
  decoded_.record(streams_.codec);
}

void DeviceUnitCoder::decode_outgoing(float weight) {
  wait_for_messages([&] { upload(outgoing_, {0, unit().bytes()}); });
  coder_.coded(Work::decode, number_, count_values(unit().segments), 1, [&] {
    for (Group& group : jobs_->groups)
      if (group.decode) group.decode->decode(0, group.begin.back(), false, streams_.codec, weight);
  });
  coder_.decoded(unit().segments);
  decoded_.record(streams_.codec);
}

}  // namespace

std::unique_ptr<UnitCoder> DeviceCoder::make_unit_coder(std::span<const NumberedUnit> units) {
  for (const NumberedUnit& u : units)
    if (std::optional<Event>& event = submitted_[u.unit->ready_after - 1]; !event) event.emplace(device());
  return std::make_unique<DeviceUnitCoder>(*this, units);
}

}  // namespace lpsgd
