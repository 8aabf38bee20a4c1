// libFuzzer: messages between ranks. This rank's peers send any bytes; it takes or refuses them. The inputs:
//   byte 0    what this rank does: 0 texts and agreements, 1 steps of the exchange, 2 what training says, 3
//   steps of
//             the exchange within a block, 4 averages of weights
//   byte 1    ranks and this rank
//   the rest  what arrives, in the order in which it is looked at
// Records of collectives are right unless their first byte is `lie`: else no input would come any further.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "comm/agree.h"
#include "comm/block_transport.h"
#include "comm/exchange.h"
#include "core/error.h"
#include "core/log.h"
#include "nn/network.h"
#include "nn/optimizer.h"
#include "trainer/averaged_weights.h"
#include "trainer/epoch_sums.h"
#include "trainer/evaluate.h"
#include "trainer/non_finite.h"
#include "trainer/replica_check.h"
#include "trainer/step_agreement.h"

namespace {

using namespace lpsgd;

constexpr std::uint8_t lie = 0xee;

void expect(bool holds) {
  if (!holds) std::abort();
}

/// The bytes of the input; zeros after its end.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}
  std::uint8_t byte() {
    std::uint8_t out = 0;
    fill(std::as_writable_bytes(std::span(&out, 1)));
    return out;
  }
  void fill(std::span<std::byte> to) {
    const std::size_t n = std::min(left_, to.size());
    if (n > 0) std::memcpy(to.data(), data_, n);
    if (n < to.size()) std::memset(to.data() + n, 0, to.size() - n);
    data_ += n;
    left_ -= n;
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

/// Every message arrives at once.
class LyingRanks final : public Transport {
 public:
  LyingRanks(Input& input, int rank, int size) : input_(input), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const char* name() const override { return "lying ranks"; }
  int local_rank() const override { return rank_; }
  int local_size() const override { return size_; }
  Request isend(std::span<const std::byte> bytes, int to, int tag) override {
    expect(to >= 0 && to < size_ && to != rank_);
    if (tag == control_tag && bytes.size() == sizeof record_)
      std::memcpy(&record_, bytes.data(), sizeof record_);
    return post({});
  }
  Request irecv(std::span<std::byte> bytes, int from, int tag) override {
    expect(from >= 0 && from < size_ && from != rank_);
    return post({bytes, tag == control_tag && bytes.size() == sizeof record_});
  }
  Request iallreduce(std::span<float> values) override { return post({std::as_writable_bytes(values)}); }
  bool test(Request request) override {
    const Arrival& arrival = arrivals_[request];
    if (!arrival.is_record)
      input_.fill(arrival.bytes);
    else if (input_.byte() == lie)
      input_.fill(arrival.bytes);
    else
      std::memcpy(arrival.bytes.data(), &record_, sizeof record_);
    return true;
  }
  Collectives& collectives() override { return collectives_; }
  void abort(int) noexcept override {}
  void cancel() noexcept override {}

 private:
  struct Arrival {
    std::span<std::byte> bytes;
    bool is_record = false;
  };
  Request post(const Arrival& arrival) {
    arrivals_.push_back(arrival);
    return arrivals_.size() - 1;
  }

  Input& input_;
  const int rank_, size_;
  CollectiveCall record_;
  std::deque<Arrival> arrivals_;
  Collectives collectives_{*this};
};

void texts(Transport& ranks) {
  const std::vector<std::string> all = ranks.all_gather_text("mine");
  expect(all.size() == static_cast<std::size_t>(ranks.size()));
  expect(all[static_cast<std::size_t>(ranks.rank())] == "mine");
  collective_try(ranks, [] {});
  check_finite_everywhere(ranks, "", 3);
  try {
    collective_try(ranks, [] { throw ConfigError("refused"); });
    std::abort();
  } catch (const SharedError& error) {
    expect(error.exit_status() >= 1 && error.exit_status() <= 255);
  }
  require_agreement(ranks, {{"train.seed", "1"}, {"train.epochs", "2"}});
}

void exchange(Transport& ranks, Input& input) {
  constexpr const char* codecs[] = {"none",
                                    "bf16",
                                    "onebit",
                                    "{kind: qsgd, bits: 2}",
                                    "{kind: qsgd, bits: 4, norm: l2, error_feedback: true}",
                                    "{kind: qsgd, bits: 8, levels: optimal}",
                                    "{kind: sign, majority: true}",
                                    "{kind: topk, density: 0.1}",
                                    "dynamic8",
                                    "mx"};
  const std::uint8_t choice = input.byte();
  const CodecSpec spec = parse_codec(config::parse_text(codecs[choice % std::size(codecs)], "fuzz"), "codec");
  const std::vector<TensorInfo> tensors = {{"conv", TensorKind::conv, {5, 3, 3, 3}, 135, 0},
                                           {"fc", TensorKind::dense, {40, 21}, 840, 144},
                                           {"bias", TensorKind::bias, {40}, 40, 992}};
  std::vector<float> gradients(1040, 0.5f);
  ExchangeOptions options;
  options.overlap = false;  // so that one thread at a time looks at what arrives
  options.chunk_bytes = 512;
  options.pack_bytes = 1024;
  options.measure_error = (choice & 0x40) != 0;
  if ((choice & 0x80) != 0 && spec.kind == "none") options.collective = Collective::allreduce;
  Exchange exchange(ranks, tensors, std::vector<CodecSpec>(3, spec), gradients, {2, 1, 0}, options);
  std::vector<CodingError> errors(tensors.size());
  for (std::uint32_t step = 0; step < 3; ++step) {
    exchange.begin(step);
    for (const std::size_t tensor : {2, 1, 0}) exchange.submit(tensor);
    exchange.finish();
    const NonFinite found = exchange.check_finite();
    expect(found.tensor >= -1 && found.tensor < 3 && found.rank >= -1 && found.rank < ranks.size());
    exchange.take_stats();
    if (options.measure_error) exchange.take_errors(errors);
  }
}

Network& small_network() {
  static const NetworkSpec spec(
      config::parse_text("{name: small, input: [4, 4, 1], classes: 2, layers: [{conv: "
                         "conv, filters: 2, kernel: 3}, flatten, {dense: fc, units: 2}]}",
                         "fuzz"));
  static Network network(spec, {.batch = 1, .threads = 1});
  return network;
}

void block(Transport& ranks, Input& input) {
  const Block mine = block_of(ranks, input.byte() % 5, "sync.ranks_per_block");
  expect(mine.first >= 0 && mine.size >= 1 && mine.first + mine.size <= ranks.size());
  const std::unique_ptr<Transport> within = make_block_transport(ranks, mine.first, mine.size);
  expect(within->rank() + mine.first == ranks.rank());
  within->barrier();
  exchange(*within, input);
}

void averages(Transport& ranks) {
  Network& network = small_network();
  const AveragedWeights average(ranks, network);
  expect(average.values().size() == network.parameters().size());
  average.deviation_from(network.parameters());
  const AveragedBuffers buffers(ranks, network);
  const AveragedWeights::Installed installed(average, network);
}

void training(Transport& ranks) {
  Network& network = small_network();
  static Optimizer optimizer({}, network.tensors(), network.parameters().size());
  StepAgreement agreement(ranks);
  for (int step = 0; step < 3; ++step) {
    const Agreed agreed = agreement.after_step(step, {});
    expect(agreed.signal >= 0 && agreed.signal <= 64 && agreement.interval() > 0);
  }
  EpochSums sums(2);
  StepMetrics metrics;
  metrics.batches.samples = metrics.steps = 1;
  metrics.distance = {.deviation = 1, .change = 2};
  sums.add(metrics);
  const EpochSoFar so_far = sums.so_far(ranks, 1);
  expect(so_far.bad_samples >= 0 && so_far.sequences.room >= 0);
  ReplicaCheck replicas(1, {}, ranks, network, optimizer);
  replicas.after_step(1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const int ranks = 2 + data[1] % 3, rank = data[1] / 4 % ranks;
  Input input(data + 2, size - 2);
  LyingRanks transport(input, rank, ranks);
  try {
    switch (data[0] % 5) {
      case 0:
        texts(transport);
        break;
      case 1:
        exchange(transport, input);
        break;
      case 2:
        training(transport);
        break;
      case 3:
        block(transport, input);
        break;
      default:
        averages(transport);
    }
  } catch (const Error& error) {
    expect(*error.what() != 0);
  }
  return 0;
}
