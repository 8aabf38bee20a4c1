// cuDNN's handle, and the descriptors of its graph API, for the files that emulate it.
#pragma once

#include <cudnn.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

struct cudnnContext {
  cudaStream_t stream = nullptr;
};

namespace lpsgd::emulated {

/// A descriptor's attributes: values, and nodes of other descriptors.
struct Node {
  cudnnBackendDescriptorType_t type{};
  bool finalized = false;
  std::map<cudnnBackendAttributeName_t, std::vector<std::byte>> values;
  std::map<cudnnBackendAttributeName_t, std::vector<std::shared_ptr<const Node>>> nodes;
  int engine = -1;
  const std::int64_t number = [] {  // the number of this plan
    static std::atomic<std::int64_t> count{0};
    return ++count;
  }();

  bool has(cudnnBackendAttributeName_t name) const { return values.contains(name) || nodes.contains(name); }
  template <class T = std::int64_t>
  std::vector<T> all(cudnnBackendAttributeName_t name) const {
    const auto found = values.find(name);
    if (found == values.end()) return {};
    std::vector<T> out(found->second.size() / sizeof(T));
    std::memcpy(out.data(), found->second.data(), found->second.size());
    return out;
  }
  template <class T = std::int64_t>
  T one(cudnnBackendAttributeName_t name, T otherwise = {}) const {
    const std::vector<T> found = all<T>(name);
    return found.empty() ? otherwise : found[0];
  }
  const Node& node(cudnnBackendAttributeName_t name, std::size_t i = 0) const { return *nodes.at(name)[i]; }
};

/// A graph's tensors in memory, by their ids.
using Pointers = std::map<std::int64_t, void*>;

/// The properties of a graph that begins with a convolution.
struct ConvolutionKind {
  bool is_consistent = false;  // sizes of input, weights and output fit each other
  bool is_grouped = false;
  bool is_fused = false;  // with pointwise operations after it
  bool is_nchw = false;   // else NHWC
  std::int64_t stride = 1;
};
/// How an engine rounds: its operands to TF32, and its results to so many bits fewer than float32's.
struct Rounding {
  bool tf32 = false;
  int lost_bits = 0;
};
ConvolutionKind convolution_kind(const Node& graph);
/// Runs the graph on the host, which must have access to device memory.
void run_convolution(const Node& graph, const Rounding& rounding, const Pointers& at);

}  // namespace lpsgd::emulated
