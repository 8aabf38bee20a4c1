#include "trainer/run_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/config_quantity.h"
#include "core/config_shape.h"
#include "trainer/sync_options.h"

namespace lpsgd {

namespace {

using config::Range;
using config::Value;
using config::Visitor;

constexpr const char* batch_type = "an integer from 1 to 1000000000, or {ranks: integer, ...}";
constexpr Range batch_range{.min = 1, .max = 1e9};

void parse_batch_size(TrainOptions& o, const Value& value, const std::string& path) {
  o.batch_sizes.clear();
  if (!value.is_map()) {
    o.batch_size = config::to_integer(value, path, batch_range);
    return;
  }
  for (const Value::Entry& e : value.entries) {
    Value ranks = Value::plain(e.key);
    ranks.origin = e.origin;
    const std::int64_t k = config::to_integer(ranks, path, Range{.min = 1, .max = 1e6});
    if (o.batch_sizes.contains(k)) config::fail(e.origin, path, fmt::format("{} ranks are given twice", k));
    o.batch_sizes[k] = config::to_integer(e.value, path + "." + e.key, batch_range);
  }
  if (o.batch_sizes.empty()) config::fail(value.origin, path, fmt::format("expected {}", batch_type));
  o.batch_size = o.batch_sizes.begin()->second;
}

Value write_batch_size(const TrainOptions& o) {
  if (o.batch_sizes.empty()) return Value::plain(fmt::format("{}", o.batch_size));
  Value map = Value::map();
  for (const auto& [ranks, size] : o.batch_sizes)
    map.set(fmt::format("{}", ranks), Value::plain(fmt::format("{}", size)));
  return map;
}

void parse_names(std::vector<std::string>& names, const Value& value, const std::string& path) {
  if (!value.is_sequence())
    config::fail(value.origin, path, "expected a list of names, such as [conv1, layer1]");
  names.clear();
  for (const Value& item : value.items) {
    names.push_back(config::to_string(item, path));
    if (names.back().empty()) config::fail(item.origin, path, "a name is empty");
  }
}

Value write_names(const std::vector<std::string>& names) {
  Value out = Value::sequence();
  for (const std::string& name : names) out.items.push_back(Value::string(name));
  return out;
}

}  // namespace

void fields(Visitor& v, TrainOptions& o) {
  v.field("epochs", o.epochs, "the number of passes over the training set", Range{.min = 0, .max = 1e9});
  v.shape([] {
    return config::Shape::choice(
        {config::Shape::integer(batch_range), config::Shape::table(config::Shape::integer(batch_range))});
  });
  v.custom(
      "batch_size", batch_type,
      "samples per step, of all ranks together; a multiple of the number of ranks. A table gives it for each "
      "number of ranks that the run may have",
      [&](const Value& value, const std::string& path) { parse_batch_size(o, value, path); },
      [&] { return write_batch_size(o); });
  v.field(
      "micro_batches", o.micro_batches,
      "gradient accumulation: each rank computes its samples of a step in so many parts, one after the "
      "other, whose gradients are averaged before they are exchanged. Less memory; batch normalisation sees "
      "one part at a time",
      Range{.min = 1, .max = 1e6});
  v.field("seed", o.seed, "the seed of everything random: weights, data order, augmentation, dropout, dither",
          Range{.min = 0, .max = 4294967295.0});
  v.choice("device", o.device,
           {{"auto", DeviceChoice::automatic}, {"cpu", DeviceChoice::cpu}, {"cuda", DeviceChoice::cuda}},
           "where layers run; auto: on a GPU if there is one, else on the CPU");
  v.choice("compute", o.compute, {{"fp32", Compute::fp32}, {"tf32", Compute::tf32}, {"bf16", Compute::bf16}},
           "the arithmetic of layers; tf32 needs a GPU, bf16 a GPU or a processor that has it");
  v.choice("recompute", o.recompute, {{"none", Recompute::none}, {"batch_norm", Recompute::batch_norm}},
           "batch_norm: outputs of batch normalisations are not kept for backward, but computed again there; "
           "less memory and the same bits, at some cost in speed");
  v.field("label_smoothing", o.label_smoothing,
          "in training, the part of each label that is spread over all classes, as in PyTorch's "
          "CrossEntropyLoss; train_loss is of these labels",
          Range{.min = 0, .max = 1, .max_open = true});
  v.shape([] { return config::Shape::list(config::Shape::text()); });
  v.custom(
      "freeze", "list of layers and blocks",
      "layers that are not trained: they compute as in evaluation, and their tensors are neither exchanged "
      "nor changed. Names of layers or blocks, or patterns with *, ? and {a,b}; no layer in front of them "
      "may be trained",
      [&](const Value& value, const std::string& path) { parse_names(o.freeze, value, path); },
      [&] { return write_names(o.freeze); });
  v.field("deterministic", o.deterministic,
          "on a GPU, get the same bits in every run, at some cost in speed; the CPU always does");
  v.field("search_seconds", o.search_seconds,
          "on a GPU, how long to measure which algorithms are the fastest, before the first step. A longer "
          "search may find faster ones; choices are kept for later runs",
          Range{.min = 0, .max = 1200});
  v.field("cuda_graphs", o.cuda_graphs,
          "on a GPU, capture the work of a step as CUDA graphs; over NCCL, backward, exchange and update "
          "become one graph");
  v.choice(
      "branches", o.branches,
      {{"never", Branches::never}, {"measured", Branches::measured}, {"always", Branches::always}},
      "on a GPU, whether CUDA graphs have branches: layers that do not depend on each other, and gradients "
      "of weights and of activations, are then computed at the same time; measured: where that is faster in "
      "the first steps. Results are the same bits");
  v.field("threads", o.threads,
          "CPU threads of each rank; 0: the cores of its machine divided by the ranks there",
          Range{.min = 0, .max = 4096});
}

void fields(Visitor& v, ExchangeConfig& o) {
  v.choice(
      "transport", o.transport,
      {{"mpi", TransportKind::mpi}, {"nccl", TransportKind::nccl}, {"threads", TransportKind::threads}},
      "what moves the bytes; mpi: an MPI library, one process per rank; nccl: between GPUs, one per rank; "
      "threads: ranks are threads of one process");
  v.choice(
      "collective", o.collective,
      {{"reduce_broadcast", Collective::reduce_broadcast},
       {"hierarchical", Collective::hierarchical},
       {"allreduce", Collective::allreduce},
       {"simulated", Collective::simulated}},
      "how gradients are averaged; reduce_broadcast: each rank averages its part and sends it to all, with "
      "any codec; hierarchical: the ranks of a machine add their gradients as float32 first, so that only "
      "one "
      "encoded copy of a machine travels between machines; allreduce: the transport's own sum, with codec "
      "none; simulated: an all-reduce of as many bytes as the codec would send, to measure its time");
  ranks_per_block_field(v, o.ranks_per_block,
                        "of hierarchical: node: the ranks of a machine; or so many consecutive ranks");
  lpsgd::fields(v, o.policy);
  v.field("warmup_epochs", o.warmup_epochs,
          "how many epochs, or what part of one, all gradients go as float32 before their codecs begin",
          {.min = 0, .max = 1e9});
  v.field("overlap", o.overlap, "exchange gradients while the backward pass runs; false: after it");
  v.field("ranks", o.ranks, "the number of ranks, with transport threads only; otherwise mpirun -n sets it",
          Range{.min = 1, .max = 1024});
  v.choice(
      "device_pointers", o.device_pointers,
      {{"auto", DevicePointers::automatic}, {"true", DevicePointers::yes}, {"false", DevicePointers::no}},
      "with gradients on a GPU, whether MPI is given device memory; auto: if the library says it takes "
      "it, else messages are copied through the host");
  static constexpr config::Unit durations[] = {{"h", 3600}, {"min", 60}, {"s", 1}};
  quantity(
      v, "timeout", o.timeout,
      "how long a rank waits in a step for others, without any progress, before the job ends; 0s: for ever",
      durations, "10min", false);
  quantity(
      v, "timeout_outside_step", o.timeout_outside_step,
      "how long a rank waits for others at the start, for data, in evaluations and for checkpoints, before "
      "the job ends; 0s: for ever",
      durations, "30min", false);
  v.section("link", "a slower network, emulated inside the transport; not with nccl",
            [&](Visitor& s) { fields(s, o.link); });
  v.shape([] {
    BitFlip flip;
    return config::Shape::map([&](Visitor& s) { fields(s, flip); });
  });
  v.custom(
      "inject", "{step, rank, tensor, element, bit}",
      "a fault, put in on purpose: one bit of one weight of one rank is flipped, to see --check-replicas "
      "find it",
      [&](const Value& value, const std::string& path) { config::read(value, path, o.inject); },
      [&] { return o.inject.planned() ? config::write(o.inject) : Value(); });
}

double codec_warmup(const ExchangeConfig& o, const std::vector<CodecSpec>& codecs) {
  return std::ranges::all_of(codecs, &CodecSpec::is_none) ? 0 : o.warmup_epochs;
}

std::string codec_warmup_text(const ExchangeConfig& o, const std::vector<CodecSpec>& codecs) {
  const double epochs = codec_warmup(o, codecs);
  return epochs > 0 ? fmt::format("{} epoch{}", epochs, epochs == 1 ? "" : "s") : "";
}

void fields(Visitor& v, CheckpointOptions& o) {
  v.field("every_epochs", o.every_epochs, "write a checkpoint after every so many epochs; 0: only at the end",
          Range{.min = 0, .max = 1e9});
  v.field("every_steps", o.every_steps,
          "also after every so many steps since the start, so that a crash repeats no more; 0: not by steps",
          Range{.min = 0, .max = 1e9});
  v.field("every_minutes", o.every_minutes,
          "also when the last checkpoint, or the start, is so many minutes old; 0: not by time",
          Range{.min = 0, .max = 1e6});
  v.field("keep", o.keep, "how many checkpoints to keep: the newest", Range{.min = 1, .max = 1e9});
}

void fields(Visitor& v, MetricsOptions& o) {
  v.field("codec_error", o.codec_error,
          "also write, per tensor and epoch, the codec's error, the residual and the bytes sent");
}

}  // namespace lpsgd
