#include "comm/exchange.h"

#include <fmt/core.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "comm/agree.h"
#include "comm/coder.h"
#include "comm/exchange_unit.h"
#include "core/checksum.h"
#include "core/error.h"

namespace lpsgd {

namespace {

constexpr std::int64_t largest_unit = 16 << 20, least_chunk = 1 << 16;  // float32 bytes

/// The announce order of each part's tensors, one part after another.
std::vector<std::size_t> by_part(std::vector<std::size_t> order, std::span<const std::size_t> parts) {
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const auto part_of = [&](std::size_t t) {
      return std::upper_bound(parts.begin(), parts.end(), t) - parts.begin();
    };
    return part_of(a) < part_of(b);
  });
  return order;
}

/// The size of packs, the same on all ranks. A collective call.
std::int64_t agreed_pack_bytes(const ExchangeOptions& options, Transport& transport) {
  if (options.pack_bytes) return *options.pack_bytes;
  const bool staged = options.device.is_cuda() && !transport.ordered() &&
                      !options.device_pointers.value_or(transport.takes_device_memory());
  const std::vector<std::int64_t> all = transport.all_gather<std::int64_t>(staged ? 1 << 21 : 1 << 18);
  return *std::min_element(all.begin(), all.end());
}

int blocks_of(const ExchangeOptions& options) {
  return options.collective == Collective::hierarchical ? options.ranks_per_block : 1;
}

}  // namespace

Exchange::Exchange(Transport& transport, const std::vector<TensorInfo>& infos,
                   const std::vector<CodecSpec>& codecs, std::span<float> gradients,
                   std::vector<std::size_t> announce_order, const ExchangeOptions& options)
    : options_(options),
      order_(by_part(std::move(announce_order), options.parts)),
      shared_(new ExchangeShared{.transport = transport,
                                 .blocks = {transport.size(), blocks_of(options)},
                                 .seed = options.seed,
                                 .first_rank = options.first_rank,
                                 .measure_error = options.measure_error}) {
  require(infos.size() == codecs.size(), "the exchange needs one codec per tensor");
  require(options.chunk_bytes > 0 && options.pack_bytes.value_or(0) >= 0 && options.units_in_flight > 0,
          "the exchange's sizes must be positive");
  require(shared_->blocks.size > 0 && transport.size() % shared_->blocks.size == 0,
          "blocks of ranks have the same size");
  std::vector<std::size_t> announced = order_;
  std::sort(announced.begin(), announced.end());
  for (std::size_t t = 0; t < announced.size(); ++t)
    require(announced[t] == t, "the announce order names a tensor twice or one that is not there");
  require(announced.size() == infos.size(), "the announce order leaves a tensor out");
  make_tensors(infos, codecs, gradients);

  const int ranks = transport.size();
  PlanOptions plan{shared_->blocks, options.chunk_bytes, agreed_pack_bytes(options, transport),
                   options.parts};
  // The buffers of a unit have room for the messages of all ranks.
  plan.chunk_bytes = std::min(plan.chunk_bytes, std::max(least_chunk, largest_unit / ranks));
  if (!has_owners(options.collective)) {
    if (options.collective == Collective::simulated) plan.simulated_owners = ranks;
    plan.chunk_bytes *= ranks;  // no owners: units are contiguous and of the same size
    plan.owners = {};
  }
  // A rank without memory for its part ends all of them with its error, which the caller's next collective
  // would not.
  collective_try(transport, [&] {
    plan_ = make_plan(shared_->tensors, order_, plan);
    make_parts();
    make_units();
    lowest_of_ranks_.resize(static_cast<std::size_t>(transport.size()));
  });
  if (transport.ordered()) {  // NCCL does not check that both sides' sizes agree
    std::vector<std::size_t> sizes;
    for (const Unit& unit : plan_) sizes.insert(sizes.end(), unit.message.begin(), unit.message.end());
    if (!transport.all_equal(checksum64(std::as_bytes(std::span(sizes)))))
      throw CommError("the ranks' tensors or codecs differ, so that their messages would not match");
  }
  thread_ = std::thread([this, ordered = transport.ordered()] { ordered ? watch() : serve(); });
}

void Exchange::make_units() {
  Transport& transport = shared_->transport;
  const int in_flight =
      transport.ordered() ? std::max(queued_at_once(), options_.units_in_flight) : options_.units_in_flight;
  const auto slots = std::min(static_cast<std::size_t>(in_flight), plan_.size());
  // A unit in flight has one message of each round to and from each other rank.
  transport.reserve(4 * slots);
  if (options_.trace)
    shared_->trace = std::make_unique<ExchangeTrace>(*options_.trace, plan_, shared_->tensors, slots,
                                                     options_.device.is_cuda());
  coder_ = make_coder(*shared_, options_);
  for (std::size_t slot = 0; slot < slots; ++slot) {
    std::vector<NumberedUnit> units;
    for (std::size_t u = slot; u < plan_.size(); u += slots) units.push_back({&plan_[u], u});
    in_flight_.push_back(make_unit_in_flight(options_.collective, *shared_, coder_->make_unit_coder(units)));
  }
}

void Exchange::make_parts() {
  std::vector<std::size_t> ends = options_.parts;
  if (ends.empty()) ends.push_back(order_.size());
  require(ends.back() == order_.size() && std::is_sorted(ends.begin(), ends.end()),
          "the exchange's parts hold every tensor once");
  Part part;
  for (const std::size_t end : ends) {
    part.begin = std::exchange(part.end, end);
    part.first_unit = part.last_unit;
    while (part.last_unit < plan_.size() && plan_[part.last_unit].ready_after <= end) ++part.last_unit;
    parts_.push_back(part);
  }
}

void Exchange::make_tensors(const std::vector<TensorInfo>& infos, const std::vector<CodecSpec>& codecs,
                            std::span<float> gradients) {
  const Transport& transport = shared_->transport;
  for (std::size_t t = 0; t < infos.size(); ++t) {
    const TensorInfo& info = infos[t];
    require(info.offset >= 0 && static_cast<std::size_t>(info.offset + info.elements) <= gradients.size(),
            "a tensor lies outside the gradient arena");
    if (options_.collective == Collective::allreduce && !codecs[t].is_none())
      throw ConfigError(fmt::format(
          "exchange.collective: allreduce sums float32 and takes codec none only, but tensor {} has "
          "codec {}; allowed with it: reduce_broadcast, hierarchical, simulated",
          info.name, to_text(codecs[t])));
    shared_->tensors.push_back(make_exchange_tensor(info, codecs[t], t, transport.rank(), shared_->blocks,
                                                    has_owners(options_.collective)));
    shared_->tensors.back().gradient = gradients.data() + info.offset;
  }
}

Exchange::~Exchange() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    wake_.notify_all();
  }
  thread_.join();
  // Within a step some of the queued messages will never be matched.
  if (shared_->transport.ordered() && open_ && next_ > part_.first_unit) shared_->transport.cancel();
  coder_->drain();
}

std::vector<std::size_t> Exchange::milestones() const {
  std::vector<std::size_t> out;
  for (const Unit& unit : plan_) {  // in the order of readiness
    const std::size_t tensor = order_[unit.ready_after - 1];
    if (out.empty() || out.back() != tensor) out.push_back(tensor);
  }
  return out;
}

void Exchange::begin(std::uint32_t step, std::size_t part) {
  rethrow_failure();
  require(!open_ && part < parts_.size(), "begin() while a step is open, or of a part that is not there");
  collect();
  shared_->transport.throw_if_failed();
  open_ = true;
  released_ = false;
  turn_ = part;
  part_ = parts_[part];
  available_ = submitted_ = part_.begin;
  next_ = part_.first_unit;
  shared_->step = step;
  shared_->next_sum = part_.first_unit;
  coder_->begin_step();
}

void Exchange::submit(std::size_t tensor, StreamView behind) {
  require(open_, "submit() without begin()");
  require(submitted_ < part_.end && order_[submitted_] == tensor, "a tensor was submitted out of order");
  coder_->submitted(++submitted_, behind);
  if (!options_.overlap) return;
  if (shared_->transport.ordered()) {
    std::size_t ready = next_;
    while (ready < part_.last_unit && plan_[ready].ready_after <= submitted_) ++ready;
    return queue_units(ready);
  }
  rethrow_failure();
  const std::lock_guard lock(mutex_);
  // Once a step: the thread may be done with it before finish().
  if (submitted_ == part_.begin + 1) working_ = true;
  available_.store(submitted_, std::memory_order_release);
  wake_.notify_all();
}

void Exchange::release() {
  require(open_ && !released_, "release() without begin()");
  require(submitted_ == part_.end, "release() before every tensor was submitted");
  released_ = true;
  if (shared_->transport.ordered()) {
    queue_units(part_.last_unit + static_cast<std::size_t>(queued_at_once()) - 1);
    coder_->end_step(0);
    step_bytes_ = shared_->transport.bytes_sent() - step_bytes_;
    step_messages_ = shared_->transport.messages_sent() - step_messages_;
    return;
  }
  const std::lock_guard lock(mutex_);
  if (!options_.overlap || part_.begin == part_.end) working_ = true;  // no submit() has started the step
  available_.store(submitted_, std::memory_order_release);
  wake_.notify_all();
}

void Exchange::finish() {
  require(open_, "finish() without begin()");
  coder_->waiting();
  if (!released_) release();
  if (!shared_->transport.ordered()) {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [&] { return !working_; });
  }
  open_ = false;
  rethrow_failure();
  count_step();
  coder_->joined();
}

bool Exchange::can_capture() const {
  return shared_->transport.ordered() && !shared_->trace && !plan_.empty() && parts_.size() == 1;
}

void Exchange::launched() {
  if (open_) {  // the graph was captured in an earlier step, whose finish() counted only that step's bytes
    require(submitted_ == part_.begin, "a step that has begun otherwise is launched");
    count_step();
    shared_->transport.launched(step_bytes_, step_messages_);
    open_ = false;
  }
  coder_->launched();
}

void Exchange::count_step() {
  stats_.bytes_sent += shared_->bytes_sent;
  stats_.bytes_between += shared_->bytes_between;
  ++parts_[turn_].exchanges;
}

void Exchange::rethrow_failure() {
  const std::lock_guard lock(mutex_);
  if (!failure_) return;
  open_ = false;
  std::rethrow_exception(failure_);
}

void Exchange::collect() {
  const Coder::Times times = coder_->collect();
  CodecClock& clock = shared_->clock;
  stats_.encode += clock.encode;
  stats_.decode += clock.decode;
  stats_.transfer += std::max(0.0, times.busy - clock.encode - clock.decode);
  stats_.exposed += times.exposed;
  stats_.exposed_codec += clock.exposed;
  clock.encode = clock.decode = clock.exposed = 0;
}

ExchangeStats Exchange::take_stats() {
  require(!open_, "take_stats() while a step is open");
  collect();
  shared_->transport.throw_if_failed();
  return std::exchange(stats_, {});
}

void Exchange::take_errors(std::span<CodingError> sums) {
  require(!open_ && shared_->measure_error && sums.size() == shared_->tensors.size(),
          "take_errors() needs measure_error, one sum per tensor and no open step");
  coder_->take_errors(sums);
  const bool counts_bytes = shared_->transport.rank() == 0;
  for (Part& part : parts_) {
    const std::int64_t exchanges = std::exchange(part.exchanges, 0);
    for (std::size_t i = part.begin; i < part.end; ++i) {
      const ExchangeTensor& tensor = shared_->tensors[order_[i]];
      CodingError& sum = sums[order_[i]];
      sum.exchanges += exchanges;
      if (tensor.codec->spec().is_none()) sum.float32 += exchanges;
      if (counts_bytes)
        sum.bytes += static_cast<std::uint64_t>(exchanges) *
                     exchanged_bytes(shared_->blocks, tensor.wire_bytes, tensor.info.elements);
    }
  }
}

NonFinite Exchange::check_finite(bool before) {
  require(!open_, "check_finite() while a step is open");
  const std::int64_t step = coder_->read_finite_flags(before);
  shared_->transport.throw_if_failed();  // after a failed message the flags mean nothing
  if (step < 0) return {};
  const auto tensors = static_cast<std::int64_t>(shared_->tensors.size());
  std::int64_t lowest = tensors;
  // With other collectives means differ between ranks, or are not guaranteed to be equal.
  bool known_to_all = has_owners(options_.collective);
  for (std::int64_t t = tensors - 1; t >= 0; --t) {
    const ExchangeTensor& tensor = shared_->tensors[static_cast<std::size_t>(t)];
    const bool carried = tensor.codec->carries_non_finite();
    known_to_all &= carried;
    if (!tensor.mean_finite || (!carried && !tensor.own_finite)) lowest = t;
  }
  if (!known_to_all) {
    shared_->transport.all_gather(std::as_bytes(std::span(&lowest, 1)),
                                  std::as_writable_bytes(std::span(lowest_of_ranks_)));
    for (std::size_t r = 0; r < lowest_of_ranks_.size(); ++r) {
      if (lowest_of_ranks_[r] < 0 || lowest_of_ranks_[r] > tensors)
        throw impossible(static_cast<std::size_t>(shared_->transport.rank_in_run(static_cast<int>(r))),
                         fmt::format("{} as the number of a tensor", lowest_of_ranks_[r]));
      lowest = std::min(lowest, lowest_of_ranks_[r]);
    }
  }
  const auto number = static_cast<std::uint32_t>(step);
  if (lowest == tensors) return {-1, -1, number};
  const ExchangeTensor& tensor = shared_->tensors[static_cast<std::size_t>(lowest)];
  // If bytes were damaged on their way here, the other ranks know nothing of it and do not come.
  const ScopedReason reason(
      shared_->transport,
      fmt::format(
          "in step {} the mean of '{}' is not finite here, which ranks find together unless a message "
          "or memory is damaged",
          step, tensor.info.name));
  const std::vector<double> finite = shared_->transport.all_gather(tensor.own_finite ? 1.0 : 0.0);
  const auto culprit = std::find(finite.begin(), finite.end(), 0.0);
  return {lowest, culprit == finite.end() ? -1 : static_cast<int>(culprit - finite.begin()), number};
}

const RankBlocks& Exchange::blocks() const {
  return shared_->blocks;
}

ResidualLayout Exchange::residual_layout() const {
  return {blocks(), has_owners(options_.collective)};
}

std::vector<ResidualSizes> Exchange::residual_sizes() const {
  std::vector<ResidualSizes> sizes;
  for (const ExchangeTensor& tensor : shared_->tensors) sizes.push_back({tensor.residual1, tensor.residual2});
  return sizes;
}

void Exchange::copy_state(const ResidualViews& to) const {
  require(!open_, "the residuals are read while a step is open");
  for (std::size_t t = 0; t < shared_->tensors.size(); ++t) {
    coder_->copy_residual(t, 1, to.round1[t]);
    coder_->copy_residual(t, 2, to.round2[t]);
  }
}

ExchangeState Exchange::state() const {
  ExchangeState state;
  ResidualViews views;
  for (const auto& [round1, round2] : residual_sizes()) {
    views.round1.emplace_back(state.round1.emplace_back(round1));
    views.round2.emplace_back(state.round2.emplace_back(round2));
  }
  copy_state(views);
  options_.compute.synchronize();
  return state;
}

void Exchange::set_state(const ExchangeState& state) {
  require(!open_, "set_state() while a step is open");
  const std::size_t tensors = shared_->tensors.size();
  if (state.round1.size() != tensors || state.round2.size() != tensors)
    throw Error(fmt::format("residuals of {} and {} tensors where the network has {}", state.round1.size(),
                            state.round2.size(), tensors));
  for (std::size_t t = 0; t < tensors; ++t) {
    const ExchangeTensor& tensor = shared_->tensors[t];
    for (const auto& [given, kept, round] : {std::tuple{&state.round1[t], tensor.residual1, 1},
                                             std::tuple{&state.round2[t], tensor.residual2, 2}})
      if (given->size() != kept)
        throw Error(fmt::format(
            "residual of tensor {}, round {}, rank {}: {} values, expected {}", tensor.info.name, round,
            shared_->transport.rank_in_run(shared_->transport.rank()), given->size(), kept));
  }
  for (std::size_t t = 0; t < tensors; ++t) {
    coder_->set_residual(t, 1, state.round1[t]);
    coder_->set_residual(t, 2, state.round2[t]);
  }
}

}  // namespace lpsgd
