#include "tests/nn/operation_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <utility>

#include "core/error.h"
#include "core/philox.h"

namespace lpsgd {
namespace {

std::size_t size(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

/// Values in [-1, 1) on the grid of bfloat16, from stream `which`.
std::vector<float> draw(std::int64_t n, std::uint32_t which, float from = -1, float to = 1) {
  PhiloxSequence sequence(11, RandomUse::dataset, which);
  std::vector<float> out(size(n));
  for (float& x : out) x = widen(narrow<Bf16>(from + (to - from) * sequence.uniform()));
  return out;
}

/// A tensor in a backend's memory.
struct Memory {
  void* data = nullptr;
  DataType type = DataType::f32;
  std::int64_t elements = 0;
};

class Rig {
 public:
  Rig(Backend& backend, DataType type) : backend_(backend), type_(type) {}
  Memory make(std::int64_t n, DataType type) { return {backend_.allocate(n * size_of(type)), type, n}; }
  Memory make(std::int64_t n) { return make(n, type_); }
  void put(const Memory& m, const std::vector<float>& values) {
    backend_.upload(m.data, m.type, values, nullptr);
  }
  Memory holding(const std::vector<float>& values, DataType type) {
    const Memory m = make(static_cast<std::int64_t>(values.size()), type);
    put(m, values);
    return m;
  }
  std::vector<float> get(const Memory& m) {
    std::vector<float> out(size(m.elements));
    backend_.download(out, m.type, m.data);
    return out;
  }

 private:
  Backend& backend_;
  DataType type_;
};

std::int64_t elements(const Shape& shape) {
  return elements_of(shape).value_or(0);
}

constexpr float outside = 3;  // what lies beside the columns

/// A tensor that may be columns of a wider array.
class Columns {
 public:
  Columns(Rig& rig, DataType type, std::int64_t rows, std::int64_t width, const OperationCase& c)
      : rig_(rig), rows_(rows), width_(width), before_(c.before), stride_(width + c.before + c.behind) {
    all_ = rig.holding(std::vector<float>(size(rows * stride_), outside), type);
  }
  void* data() const { return static_cast<std::byte*>(all_.data) + before_ * size_of(all_.type); }
  std::int64_t stride() const { return stride_; }
  void put(const std::vector<float>& values) const {
    std::vector<float> all(size(rows_ * stride_), outside);
    for (std::int64_t i = 0; i < rows_ * width_; ++i) all[place(i)] = values[size(i)];
    rig_.put(all_, all);
  }
  /// Error if what lies beside the columns was changed.
  std::vector<float> get() const {
    std::vector<float> all = rig_.get(all_), out(size(rows_ * width_));
    for (std::int64_t i = 0; i < rows_ * width_; ++i) out[size(i)] = std::exchange(all[place(i)], outside);
    require(std::ranges::all_of(all, [](float x) { return x == outside; }), "values beside the columns");
    return out;
  }

 private:
  std::size_t place(std::int64_t i) const { return size(i / width_ * stride_ + before_ + i % width_); }

  Rig& rig_;
  std::int64_t rows_, width_, before_, stride_;
  Memory all_;
};

}  // namespace

Results run_case(Backend& backend, DataType type, const OperationCase& c) {
  backend.prepare_thread();
  Rig rig(backend, type);
  const std::vector<std::int32_t> labels(size(c.batch), 0);
  const Memory logits = rig.make(2 * c.batch);
  const auto loss = backend.softmax_cross_entropy(type, logits.data, nullptr, {c.batch, 1, 2});

  // Parameters lie in an arena, at multiples of 16 values.
  std::int64_t arena = 0;
  std::deque<TensorInfo> infos;
  for (const Shape& shape : c.parameters) {
    infos.push_back({"p", TensorKind::dense, shape, elements(shape), arena});
    arena += (elements(shape) + 15) / 16 * 16;
  }
  const Memory weights = rig.make(std::max<std::int64_t>(arena, 1), DataType::f32);
  const Memory gradients = rig.make(std::max<std::int64_t>(arena, 1), DataType::f32);
  // Matrices keep the size of what they multiply (by a power of two: exact), or an LSTM is chaos.
  std::vector<float> initial = draw(weights.elements, 1);
  for (const TensorInfo& info : infos) {
    const std::int64_t fan = info.shape.size() > 1 ? info.elements / info.shape[0] : 1;
    const float scale = std::exp2(-std::floor(std::log2(static_cast<float>(fan)) / 2));
    for (std::int64_t i = info.offset; i < info.offset + info.elements; ++i) initial[size(i)] *= scale;
  }
  rig.put(weights, initial);
  rig.put(gradients, draw(gradients.elements, 2));
  backend.parameters({static_cast<const float*>(weights.data), size(weights.elements)});

  Binding b;
  b.batch = c.batch;
  b.training = c.training;
  b.random = {5, 3, 7};
  b.shape = c.output;
  b.type = type;
  b.relu = c.relu;
  for (const TensorInfo& info : infos)
    b.parameters.push_back({&info, static_cast<const float*>(weights.data) + info.offset,
                            static_cast<float*>(gradients.data) + info.offset});
  std::vector<Memory> values, input_gradients, buffers;
  std::vector<Columns> output_gradients;
  std::vector<std::vector<float>> given;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    const std::int64_t n = c.batch * elements(c.inputs[i]);
    given.push_back(draw(n, 10 + static_cast<std::uint32_t>(i), -c.range, c.range));
    if (c.tokens > 0)
      for (float& x : given.back()) x = std::floor((x + 1) / 2 * static_cast<float>(c.tokens));
    if (c.step > 0)
      for (float& x : given.back()) x = std::floor(x / c.step) * c.step;
    if (c.not_a_number && i == 0) given[0][0] = std::nanf("");
    values.push_back(rig.make(n, c.tokens > 0 ? DataType::f32 : type));
    b.inputs.push_back({c.inputs[i], values.back().type, values.back().data, nullptr});
  }
  const std::int64_t width = c.output.back(), rows = b.elements() / width;
  const Columns columns(rig, type, rows, width, c);
  b.output = c.in_place ? values[0].data : columns.data();
  if (c.before + c.behind > 0) b.output_stride = columns.stride();
  for (int g = 0; g < c.gradients; ++g) {
    output_gradients.emplace_back(rig, type, rows, width, c);
    b.output_gradients.push_back(output_gradients.back().data());
  }
  if (c.training && c.input_gradients && c.tokens == 0) {
    for (std::size_t i = 0; i < c.inputs.size(); ++i) {
      input_gradients.push_back(c.over_gradient ? Memory{output_gradients[0].data(), type, b.elements()}
                                                : rig.make(values[i].elements));
      b.inputs[i].gradient = input_gradients.back().data;
    }
  }
  for (int i = 0; c.buffers > 0 && i < 2; ++i) {
    buffers.push_back(
        rig.holding(draw(c.buffers, 30 + static_cast<std::uint32_t>(i), 0.5f, 1), DataType::f32));
    b.buffers.push_back(static_cast<float*>(buffers.back().data));
  }
  if (c.residual) b.residual = rig.holding(draw(b.elements(), 40), type).data;
  std::vector<Memory> carried;
  for (const Shape& shape : c.carried) {
    carried.push_back(rig.make(c.batch * elements(shape), DataType::f32));
    b.carried.push_back(static_cast<float*>(carried.back().data));
    const Memory other = rig.make(c.batch * elements(shape), DataType::f32);
    b.carried_in_evaluation.push_back(static_cast<float*>(other.data));
  }
  if (!c.training) std::swap(b.carried, b.carried_in_evaluation);
  Memory masked;
  if (c.masked) {
    masked = rig.make(b.elements());
    b.masked = masked.data;
  }

  const std::unique_ptr<Op> op = c.make(backend, b);
  backend.finish_planning();
  const Pass pass{
      .training = c.training, .step = 4, .valid = c.batch, .lengths = c.lengths, .continues = c.continues};
  const auto output_gradient = [&](std::size_t g) {
    std::vector<float> values_of = draw(b.elements(), 50 + static_cast<std::uint32_t>(g));
    if (c.infinite) values_of.front() = values_of.back() = std::numeric_limits<float>::infinity();
    return values_of;
  };
  Results out;
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < values.size(); ++i) rig.put(values[i], given[i]);
    for (std::size_t i = 0; i < carried.size(); ++i)
      rig.put(carried[i], draw(carried[i].elements, 70 + static_cast<std::uint32_t>(i)));
    for (std::size_t g = 0; g < output_gradients.size(); ++g) output_gradients[g].put(output_gradient(g));
    backend.begin(pass, labels);
    op->forward(pass);
    out["output"] = c.in_place ? rig.get(values[0]) : columns.get();
    if (c.training) op->backward();
  }
  for (std::size_t i = 0; i < input_gradients.size(); ++i)
    out[fmt::format("input {}", i)] = rig.get(input_gradients[i]);
  if (c.training) {
    const std::vector<float> all = rig.get(gradients);
    for (std::size_t i = 0; i < infos.size(); ++i)
      out[fmt::format("parameter {}", i)] = {all.begin() + infos[i].offset,
                                             all.begin() + infos[i].offset + infos[i].elements};
    if (c.masked) out["masked"] = rig.get(masked);
  }
  for (std::size_t i = 0; i < carried.size(); ++i) out[fmt::format("carried {}", i)] = rig.get(carried[i]);
  for (std::size_t i = 0; i < buffers.size(); ++i) out[fmt::format("buffer {}", i)] = rig.get(buffers[i]);
  for (std::size_t i = 0; i < given.size(); ++i) out[fmt::format("given input {}", i)] = given[i];
  for (std::size_t i = 0; i < infos.size(); ++i)
    out[fmt::format("given parameter {}", i)] = {initial.begin() + infos[i].offset,
                                                 initial.begin() + infos[i].offset + infos[i].elements};
  for (std::size_t g = 0; c.training && g < output_gradients.size(); ++g)
    out[fmt::format("given gradient {}", g)] = output_gradient(g);
  return out;
}

std::string hidden_not_a_number(Backend& backend, DataType type) {
  std::string out;
  const auto check = [&](const OperationCase& c, const Results& results, const char* tensor,
                         std::int64_t first, std::int64_t end, bool expected) {
    for (std::int64_t i = first; i < end; ++i)
      if (std::isnan(results.at(tensor)[size(i)]) != expected)
        out += fmt::format("{}: {} of {} is {}; ", c.name, i, tensor, results.at(tensor)[size(i)]);
  };
  // It is in the first query of the first sample's first head.
  OperationCase c = attention_case(2, 5, {.heads = 2}, 4);
  c.not_a_number = true;
  Results results = run_case(backend, type, c);
  check(c, results, "output", 0, 4, true);
  check(c, results, "output", 4, 80, false);
  for (std::int64_t frame = 0; frame < 5; ++frame)
    check(c, results, "input 0", frame * 24 + 8, frame * 24 + 12, true);
  check(c, results, "input 0", 120, 240, false);
  c = layer_norm_case(2, {3, 40}, 1e-5);
  c.not_a_number = true;
  results = run_case(backend, type, c);
  for (const char* tensor : {"output", "input 0"}) {
    check(c, results, tensor, 0, 40, true);
    check(c, results, tensor, 40, 240, false);
  }
  check(c, results, "parameter 0", 0, 40, true);
  check(c, results, "parameter 1", 0, 40, false);
  // The first of two groups of four channels, in the first of two samples of three pixels.
  c = group_norm_case(2, {1, 3, 8}, 2);
  c.not_a_number = true;
  results = run_case(backend, type, c);
  for (const char* tensor : {"output", "input 0"}) {
    for (std::int64_t pixel = 0; pixel < 3; ++pixel) {
      check(c, results, tensor, pixel * 8, pixel * 8 + 4, true);
      check(c, results, tensor, pixel * 8 + 4, pixel * 8 + 8, false);
    }
    check(c, results, tensor, 24, 48, false);
  }
  check(c, results, "parameter 0", 0, 4, true);
  check(c, results, "parameter 0", 4, 8, false);
  check(c, results, "parameter 1", 0, 8, false);
  return out;
}

Results run_loss(Backend& backend, DataType type, const LossDesc& desc, bool lengths, double divisor) {
  const auto [batch, frames, classes, smoothing] = desc;
  backend.prepare_thread();
  Rig rig(backend, type);
  const std::int64_t rows = batch * frames;
  const Memory logits = rig.make(rows * classes), gradient = rig.make(rows * classes);
  const auto loss = backend.softmax_cross_entropy(type, logits.data, gradient.data, desc);
  backend.finish_planning();
  Results out;
  PhiloxSequence sequence(3, RandomUse::dataset, 77);
  std::vector<std::int32_t> labels(size(rows)), ends(lengths ? size(batch) : 0);
  for (int b = 0; b < 3; ++b) {
    for (std::int32_t& label : labels)
      label = static_cast<std::int32_t>(sequence.below(static_cast<std::uint32_t>(classes)));
    for (std::int32_t& end : ends)
      end = static_cast<std::int32_t>(sequence.below(static_cast<std::uint32_t>(frames + 1)));
    rig.put(logits, draw(rows * classes, 60 + static_cast<std::uint32_t>(b), -4, 4));
    const Pass pass{.training = true,
                    .valid = batch - b % 2,  // the last sample does not always count
                    .lengths = ends,
                    .loss_divisor = divisor};
    backend.begin(pass, labels);
    loss->forward(pass, labels);
    loss->backward();
  }
  out["gradient"] = rig.get(gradient);
  const LossOp::Sums sums = loss->take();
  out["loss"] = {static_cast<float>(sums.loss)};
  out["top1"] = {static_cast<float>(sums.top1)};
  out["top5"] = {static_cast<float>(sums.top5)};
  out["scored"] = {static_cast<float>(sums.scored)};
  if (loss->take().scored != 0) out["scored"] = {-1};
  return out;
}

Results run_sum(Backend& backend, DataType type, int terms, bool masked, std::int64_t n) {
  backend.prepare_thread();
  Rig rig(backend, type);
  std::vector<const void*> pointers;
  Memory into;
  for (int t = 0; t < terms; ++t) {
    const Memory m = rig.holding(draw(n, 80 + static_cast<std::uint32_t>(t)), type);
    if (t == 0) into = m;
    pointers.push_back(m.data);
  }
  const Memory mask = rig.holding(draw(n, 79), type);
  const auto op = backend.sum(type, into.data, pointers, masked ? mask.data : nullptr, n);
  backend.finish_planning();
  op->backward();
  return {{"sum", rig.get(into)}};
}

Distance worst_distance(const Results& values, const Results& truth) {
  Distance worst;
  require(values.size() == truth.size(), "both runs have the same tensors");
  for (const auto& [name, expected] : truth) {
    const std::vector<float>& got = values.at(name);
    require(got.size() == expected.size(), "both runs have tensors of one size");
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      difference += std::pow(static_cast<double>(got[i]) - static_cast<double>(expected[i]), 2);
      norm += std::pow(static_cast<double>(expected[i]), 2);
    }
    const double distance = std::sqrt(difference) / std::max(std::sqrt(norm), 1e-30);
    if (!(distance <= worst.value)) worst = {distance, name};  // a NaN is the worst
  }
  return worst;
}

}  // namespace lpsgd
