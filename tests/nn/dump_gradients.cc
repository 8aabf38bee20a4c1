// Runs a network from given weights on a given batch and writes what another system can be compared with.
//   dump_gradients NETWORK IN.safetensors OUT.safetensors [--steps N] [--device cuda] [--compute tf32|bf16]
//                  [--label-smoothing E] [--recompute batch_norm] [--branches never|always]
//                  [--set a.b=value]...
// IN holds every parameter under its name (PyTorch's order of elements), "input" (N, shape...), "labels" (N)
// or (N, frames), and, if it likes, "lengths" (N), "continues" (N) with the states that training carries to
// each step, and running statistics under their names. OUT gets "loss", "logits", "gradient.NAME",
// "buffer.NAME" and, of sequences, "state.NAME" (what is carried on) of the first step, "step.NAME" after N
// steps of SGD (lr 0.01, momentum 0.9, weight decay 1e-4, on the same batch), and "evaluation": the logits of
// an evaluation after them. Without IN's weights ("-"): OUT gets the initial weights of seed 1. With
// --branches the algorithms are deterministic.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/error.h"
#include "core/safetensors.h"
#include "nn/network.h"
#include "nn/optimizer.h"
#include "tests/nn/trained_network.h"

namespace {

using lpsgd::StoredTensor;
using lpsgd::TensorInfo;

/// Tensors to write, with their own storage.
class Output {
 public:
  void add(std::string name, std::vector<std::int64_t> shape, std::vector<float> values) {
    storage_.push_back(std::move(values));
    tensors_.push_back({std::move(name), std::move(shape), storage_.back()});
  }
  void add_arena(const char* prefix, const std::vector<TensorInfo>& tensors, std::span<const float> arena) {
    for (const TensorInfo& t : tensors) {
      std::vector<float> values(static_cast<std::size_t>(t.elements));
      lpsgd::to_pytorch_order(t, arena.data() + t.offset, values.data());
      add(prefix + t.name, t.shape, std::move(values));
    }
  }
  void write(const std::string& path) const { lpsgd::write_safetensors(path, tensors_); }

 private:
  std::deque<std::vector<float>> storage_;
  std::vector<StoredTensor> tensors_;
};

lpsgd::Compute compute_of(const std::string& word) {
  if (word == "bf16") return lpsgd::Compute::bf16;
  return word == "tf32" ? lpsgd::Compute::tf32 : lpsgd::Compute::fp32;
}

/// The values of a tensor, if there is one.
std::vector<std::int32_t> integers(const StoredTensor* tensor) {
  std::vector<std::int32_t> out;
  if (tensor)
    for (const float v : tensor->values) out.push_back(static_cast<std::int32_t>(v));
  return out;
}

void run(const std::vector<std::string>& words) {
  lpsgd::config::Value tree = lpsgd::config::parse_file(words[0]);
  int steps = 1;
  double smoothing = 0;
  lpsgd::Compute compute = lpsgd::Compute::fp32;
  lpsgd::Recompute recompute = lpsgd::Recompute::none;
  std::optional<lpsgd::Branches> branches;
  lpsgd::Device device;
  for (std::size_t i = 3; i + 1 < words.size(); i += 2) {
    if (words[i] == "--steps")
      steps = std::stoi(words[i + 1]);
    else if (words[i] == "--compute")
      compute = compute_of(words[i + 1]);
    else if (words[i] == "--recompute")
      recompute = words[i + 1] == "batch_norm" ? lpsgd::Recompute::batch_norm : lpsgd::Recompute::none;
    else if (words[i] == "--branches")
      branches = words[i + 1] == "always" ? lpsgd::Branches::always : lpsgd::Branches::never;
    else if (words[i] == "--label-smoothing")
      smoothing = std::stod(words[i + 1]);
    else if (words[i] == "--device")
      device = words[i + 1] == "cuda" ? lpsgd::Device::cuda(0) : lpsgd::Device::cpu();
    else
      lpsgd::config::apply_override(tree, words[i + 1]);
  }
  const lpsgd::NetworkSpec spec(tree);
  Output out;
  if (words[1] == "-") {
    lpsgd::Network network(spec, {.inference_only = true, .device = device});
    out.add_arena("", spec.tensors(), on_host(network.parameters(), network.stream()));
    out.write(words[2]);
    return;
  }
  const lpsgd::SafetensorsFile in(words[1]);
  const StoredTensor* input = in.find("input");
  const StoredTensor* label = in.find("labels");
  if (!input || !label) throw lpsgd::FileError(words[1] + ": has no 'input' or no 'labels'");
  const std::int64_t batch = input->shape[0];
  lpsgd::Network network(spec, {.batch = batch,
                                .compute = compute,
                                .recompute = recompute,
                                .label_smoothing = smoothing,
                                .device = device,
                                .deterministic = branches.has_value(),
                                .branches = branches.value_or(lpsgd::Branches::measured)});
  const lpsgd::StreamView stream = network.stream();
  std::vector<float> weights(network.parameters().size());
  for (const TensorInfo& t : spec.tensors())
    lpsgd::from_pytorch_order(t, in.at(t.name, t.shape).values.data(), weights.data() + t.offset);
  lpsgd::copy_values(network.parameters(), weights, stream);
  for (const lpsgd::NamedBuffer& b : network.buffers())
    if (const StoredTensor* given = in.find(b.name)) lpsgd::copy_values(b.values, given->values, stream);
  std::vector<std::int64_t> scores = spec.layers().back().shape;
  scores.insert(scores.begin(), batch);
  const std::vector<std::int32_t> labels = integers(label), lengths = integers(in.find("lengths")),
                                  continues = integers(in.find("continues"));
  const lpsgd::Samples samples{
      .inputs = input->values, .labels = labels, .lengths = lengths, .continues = continues};
  lpsgd::Optimizer optimizer({.momentum = 0.9, .weight_decay = 1e-4}, network.tensors(),
                             network.parameters().size(), stream);
  optimizer.set_rate(0.01);
  for (int step = 0; step < steps; ++step) {
    for (const lpsgd::NamedBuffer& b : network.carried_state())
      if (const StoredTensor* given = in.find(b.name)) lpsgd::copy_values(b.values, given->values, stream);
    network.forward_train(samples, step);
    network.backward({});
    if (step == 0) {
      const lpsgd::BatchMetrics m = network.take_metrics();
      out.add("loss", {1}, {static_cast<float>(m.loss / static_cast<double>(m.samples))});
      out.add("logits", scores, {network.logits().begin(), network.logits().end()});
      out.add_arena("gradient.", network.tensors(), on_host(network.gradients(), stream));
      for (const lpsgd::NamedBuffer& b : network.buffers())
        out.add("buffer." + b.name, b.shape, on_host(b.values, stream));
      for (const lpsgd::NamedBuffer& b : network.carried_state())
        out.add("state." + b.name, b.shape, on_host(b.values, stream));
    }
    optimizer.step(network.parameters(), network.gradients());
  }
  network.forward_eval({.inputs = input->values, .labels = labels, .lengths = lengths}, batch);
  out.add("evaluation", scores, {network.logits().begin(), network.logits().end()});
  out.add_arena("step.", network.tensors(), on_host(network.parameters(), stream));
  out.write(words[2]);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    if (words.size() < 3)
      throw lpsgd::ConfigError("usage: dump_gradients NETWORK IN OUT [--steps N] [--set a.b=value]...");
    run(words);
  } catch (const std::exception& e) {
    fmt::print(stderr, "dump_gradients: {}\n", e.what());
    return 1;
  }
  return 0;
}
