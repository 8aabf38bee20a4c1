// cuDNN's graph API as lpsgd uses it: a convolution of NHWC arrays, forward with bias and ReLU behind it, or
// one of its gradients. Engines differ as cuDNN's do: the one named first needs tensor cores, some cannot
// finish a plan or ask for more workspace than there is.
#include <cudnn.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "tests/emulated/cudnn.h"
#include "tests/emulated/machine.h"
#include "tests/emulated/numbers.h"

using namespace lpsgd::emulated;

namespace {

struct Node {
  cudnnBackendDescriptorType_t type{};
  bool finalized = false;
  std::map<cudnnBackendAttributeName_t, std::vector<std::byte>> values;
  std::map<cudnnBackendAttributeName_t, std::vector<std::shared_ptr<const Node>>> nodes;
  int engine = -1;
  const std::int64_t number = [] {
    static std::atomic<std::int64_t> made{0};
    return ++made;
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
struct Holder {
  std::shared_ptr<Node> node;
};

Node& of(cudnnBackendDescriptor_t descriptor) {
  return *static_cast<Holder*>(descriptor)->node;
}

std::size_t size_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
      return 8;
    case CUDNN_TYPE_BOOLEAN:
      return 1;
    default:
      return 4;
  }
}

struct Engine {
  std::vector<cudnnBackendNumericalNote_t> notes;
  std::int64_t workspace;
  bool plans;
};
const Engine engines[] = {
    {{CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}, 0, true},
    {{CUDNN_NUMERICAL_NOTE_TENSOR_CORE}, 1 << 16, true},
    {{}, 0, false},
    {{}, std::int64_t{1} << 50, true},
    {{CUDNN_NUMERICAL_NOTE_WINOGRAD, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4}, 0, true},
    {{CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}, 0, true},
    {{}, 4096, true},
};
constexpr int fallback = 6;

bool uses_tensor_cores(int engine) {
  return !engines[engine].notes.empty() && engines[engine].notes[0] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
}

struct Tensor {
  std::int64_t id = 0;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::int64_t n = 0, c = 0, h = 0, w = 0;
  explicit Tensor(const Node& node)
      : id(node.one(CUDNN_ATTR_TENSOR_UNIQUE_ID)),
        type(node.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE)) {
    const std::vector<std::int64_t> size = node.all(CUDNN_ATTR_TENSOR_DIMENSIONS);
    n = size[0], c = size[1], h = size[2], w = size[3];
    if (node.all(CUDNN_ATTR_TENSOR_STRIDES) != std::vector<std::int64_t>{h * w * c, 1, w * c, c})
      undefined("a tensor that is not NHWC");
  }
  std::int64_t elements() const { return n * c * h * w; }
  bool bf16() const { return type == CUDNN_DATA_BFLOAT16; }
};

/// A convolution's parts, whichever pass it is.
struct Convolution {
  cudnnBackendDescriptorType_t pass;
  Tensor x, w, y;
  std::vector<std::int64_t> pad, stride;
};
Convolution convolution_of(const Node& o) {
  const auto make = [&](auto description, auto x, auto w, auto y) {
    const Node& d = o.node(description);
    return Convolution{o.type,
                       Tensor(o.node(x)),
                       Tensor(o.node(w)),
                       Tensor(o.node(y)),
                       d.all(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS),
                       d.all(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES)};
  };
  switch (o.type) {
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
      return make(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y);
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
      return make(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY);
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
      return make(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY);
    default:
      undefined("a graph that does not begin with a convolution");
  }
}

/// Calls body(window, y) for each window of the input that a group of filters sees: `window` holds the places
/// of its pixels' channels in x in the filters' order, -1 where it hangs over the border; `y` is the place of
/// the first filter's output.
template <class Body>
void each_window(const Convolution& p, const Body& body) {
  const std::int64_t groups = p.x.c / p.w.c, filters = p.w.n / groups;
  std::vector<std::int64_t> window(static_cast<std::size_t>(p.w.h * p.w.w));
  for (std::int64_t n = 0; n < p.y.n; ++n)
    for (std::int64_t oh = 0; oh < p.y.h; ++oh)
      for (std::int64_t ow = 0; ow < p.y.w; ++ow)
        for (std::int64_t g = 0; g < groups; ++g) {
          for (std::int64_t k = 0; k < p.w.h * p.w.w; ++k) {
            const std::int64_t h = oh * p.stride[0] - p.pad[0] + k / p.w.w;
            const std::int64_t w = ow * p.stride[1] - p.pad[1] + k % p.w.w;
            const bool inside = h >= 0 && h < p.x.h && w >= 0 && w < p.x.w;
            window[static_cast<std::size_t>(k)] =
                inside ? ((n * p.x.h + h) * p.x.w + w) * p.x.c + g * p.w.c : -1;
          }
          body(window, ((n * p.y.h + oh) * p.y.w + ow) * p.y.c + g * filters, g * filters, filters);
        }
}

using Pointers = std::map<std::int64_t, void*>;

std::size_t bytes_of(const Tensor& t) {
  return static_cast<std::size_t>(t.elements()) * (t.bf16() ? 2 : 4);
}
std::vector<float> values_of(const Tensor& t, const Pointers& at, bool tf32) {
  if (!is_device_memory(at.at(t.id), bytes_of(t))) undefined("a tensor beyond its memory");
  return all_of(at.at(t.id), t.bf16(), t.elements(), tf32);
}
void store(const std::vector<double>& values, const Tensor& t, const Pointers& at) {
  void* const to = at.at(t.id);
  if (!is_device_memory(to, bytes_of(t))) undefined("a tensor beyond its memory");
  for (std::size_t i = 0; i < values.size(); ++i)
    write(to, t.bf16(), static_cast<std::int64_t>(i), static_cast<float>(values[i]));
}

void run(const Node& graph, bool tf32, const Pointers& at) {
  const auto& operations = graph.nodes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  const Convolution p = convolution_of(*operations[0]);
  const std::int64_t c = p.w.c, size = p.w.h * p.w.w * c;  // of a filter
  const auto over = [&](const Tensor& a, const Tensor& b) {
    return at.contains(a.id) && at.contains(b.id) &&
           overlap(at.at(a.id), bytes_of(a), at.at(b.id), bytes_of(b));
  };
  if (over(p.x, p.w) || over(p.w, p.y) || over(p.x, p.y))
    undefined("a convolution is written over what it reads");
  const bool to_input = p.pass == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
  const bool to_weights = p.pass == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR;
  const auto operand = [&](const Tensor& t, bool reads) {
    return reads ? values_of(t, at, tf32) : std::vector<float>();
  };
  const auto result = [&](const Tensor& t, bool writes) {
    return std::vector<double>(writes ? static_cast<std::size_t>(t.elements()) : 0);
  };
  const std::vector<float> x = operand(p.x, !to_input), w = operand(p.w, !to_weights),
                           dy = operand(p.y, to_input || to_weights);
  std::vector<double> dx = result(p.x, to_input), dw = result(p.w, to_weights), y = result(p.y, dy.empty());
  std::vector<float> patch(static_cast<std::size_t>(size));
  std::vector<double> sum(static_cast<std::size_t>(size));
  each_window(p, [&](const std::vector<std::int64_t>& window, std::int64_t first_y, std::int64_t first,
                     std::int64_t filters) {
    if (!to_input)
      for (std::size_t k = 0; k < window.size(); ++k) {
        float* const to = patch.data() + static_cast<std::int64_t>(k) * c;
        if (window[k] < 0)
          std::fill_n(to, c, 0.0f);
        else
          std::copy_n(x.data() + window[k], c, to);
      }
    else
      std::fill(sum.begin(), sum.end(), 0.0);
    for (std::int64_t o = 0; o < filters; ++o) {
      const auto place = static_cast<std::size_t>(first_y + o);
      if (to_input)
        add_scaled(static_cast<double>(dy[place]), w.data() + (first + o) * size, sum.data(), size);
      else if (to_weights)
        add_scaled(static_cast<double>(dy[place]), patch.data(), dw.data() + (first + o) * size, size);
      else
        y[place] = dot(patch.data(), w.data() + (first + o) * size, size);
    }
    if (to_input)
      for (std::size_t k = 0; k < window.size(); ++k)
        for (std::int64_t i = 0; i < c && window[k] >= 0; ++i)
          dx[static_cast<std::size_t>(window[k] + i)] +=
              sum[k * static_cast<std::size_t>(c) + static_cast<std::size_t>(i)];
  });
  if (to_input) return store(dx, p.x, at);
  if (to_weights) return store(dw, p.w, at);
  Tensor out = p.y;
  for (std::size_t o = 1; o < operations.size(); ++o) {
    const Node& operation = *operations[o];
    const auto mode = operation.node(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR)
                          .one<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
    if (Tensor(operation.node(CUDNN_ATTR_OPERATION_POINTWISE_XDESC)).id != out.id)
      undefined("operations that do not follow each other");
    out = Tensor(operation.node(CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
    if (mode == CUDNN_POINTWISE_ADD) {
      const std::vector<float> bias =
          values_of(Tensor(operation.node(CUDNN_ATTR_OPERATION_POINTWISE_BDESC)), at, false);
      for (std::size_t i = 0; i < y.size(); ++i) y[i] += static_cast<double>(bias[i % bias.size()]);
    } else if (mode == CUDNN_POINTWISE_RELU_FWD) {
      for (double& v : y) v = v < 0 ? 0 : v;
    } else {
      undefined("a pointwise operation");
    }
  }
  store(y, out, at);
}

cudnnStatus_t check_convolution(const Node& graph) {
  const Convolution p = convolution_of(graph.node(CUDNN_ATTR_OPERATIONGRAPH_OPS));
  if (p.x.c % p.w.c != 0 || p.y.c != p.w.n || p.x.n != p.y.n ||
      (p.x.h + 2 * p.pad[0] - p.w.h) / p.stride[0] + 1 != p.y.h ||
      (p.x.w + 2 * p.pad[1] - p.w.w) / p.stride[1] + 1 != p.y.w)
    return CUDNN_STATUS_BAD_PARAM;
  return CUDNN_STATUS_SUCCESS;
}

/// A graph of the engines takes: with bias and ReLU behind a grouped convolution none does.
bool takes(const Node& graph, int engine) {
  const Convolution p = convolution_of(graph.node(CUDNN_ATTR_OPERATIONGRAPH_OPS));
  const bool fused = graph.nodes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).size() > 1;
  return !fused || (p.x.c == p.w.c && (engine < 2 || engine > 3));
}

}  // namespace

std::size_t cudnnGetVersion() {
  return CUDNN_VERSION;
}
const char* cudnnGetErrorString(cudnnStatus_t) {
  return "the emulated GPU refuses";
}
void cudnnGetLastErrorString(char* text, std::size_t) {
  *text = '\0';
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = new cudnnContext;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  auto node = std::make_shared<Node>();
  node->type = type;
  *descriptor = new Holder{std::move(node)};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete static_cast<Holder*>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t count,
                                       const void* values) {
  Node& node = of(descriptor);
  if (node.finalized) return CUDNN_STATUS_BAD_PARAM;
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    auto& to = node.nodes[name];
    to.clear();
    for (std::int64_t i = 0; i < count; ++i) {
      const auto& held = static_cast<Holder* const*>(values)[i]->node;
      if (!held->finalized) return CUDNN_STATUS_BAD_PARAM;
      to.push_back(held);
    }
    return CUDNN_STATUS_SUCCESS;
  }
  const auto* bytes = static_cast<const std::byte*>(values);
  node.values[name].assign(bytes, bytes + static_cast<std::size_t>(count) * size_of(type));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  Node& node = of(descriptor);
  if (node.finalized) return CUDNN_STATUS_BAD_PARAM;
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  switch (node.type) {
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      if (!node.has(CUDNN_ATTR_OPERATIONGRAPH_HANDLE)) return CUDNN_STATUS_BAD_PARAM;
      status = check_convolution(node);
      break;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: {
      if (!node.has(CUDNN_ATTR_EXECUTION_PLAN_HANDLE)) return CUDNN_STATUS_BAD_PARAM;
      node.engine = node.node(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).engine;
      if (!engines[node.engine].plans) status = CUDNN_STATUS_NOT_SUPPORTED;
      break;
    }
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
      for (const auto name :
           {CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_ATTR_TENSOR_DIMENSIONS,
            CUDNN_ATTR_TENSOR_STRIDES, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT})
        if (!node.has(name)) status = CUDNN_STATUS_BAD_PARAM;
      break;
    default:
      break;
  }
  node.finalized = status == CUDNN_STATUS_SUCCESS;
  return status;
}

cudnnStatus_t cudnnBackendGetAttribute(const cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                       std::int64_t most, std::int64_t* count, void* values) {
  const Node& node = of(descriptor);
  if (!node.finalized) return CUDNN_STATUS_BAD_PARAM;
  *count = 0;
  // Descriptors are filled that the caller has made.
  const auto give = [&](int engine, const Node& graph_of) {
    if (*count >= most) return;
    Node& to = of(static_cast<cudnnBackendDescriptor_t*>(values)[(*count)++]);
    to.nodes = graph_of.nodes;
    to.engine = engine;
    to.finalized = true;
  };
  const auto number = [&](std::int64_t value) {
    if (type != CUDNN_TYPE_INT64) return CUDNN_STATUS_BAD_PARAM;
    *count = 1;
    *static_cast<std::int64_t*>(values) = value;
    return CUDNN_STATUS_SUCCESS;
  };
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: {
      const Node& graph = node.node(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
      if (node.one<cudnnBackendHeurMode_t>(CUDNN_ATTR_ENGINEHEUR_MODE) == CUDNN_HEUR_MODE_FALLBACK) {
        if (takes(graph, fallback)) give(fallback, node);
      } else {
        for (int e = 0; e < fallback; ++e)
          if (takes(graph, e)) give(e, node);
      }
      return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_ENGINECFG_ENGINE:
      give(node.engine, node);
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
      for (const cudnnBackendNumericalNote_t note : engines[node.engine].notes)
        if (*count < most) static_cast<cudnnBackendNumericalNote_t*>(values)[(*count)++] = note;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
      return number(node.engine);
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      return number(engines[node.engine].workspace);
    default:
      undefined("an attribute of a descriptor");
  }
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  const Node &p = of(plan), &v = of(pack);
  if (!p.finalized || !v.finalized) return CUDNN_STATUS_BAD_PARAM;
  const std::vector<std::int64_t> ids = v.all(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const std::vector<void*> pointers = v.all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  Pointers at;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (reinterpret_cast<std::uintptr_t>(pointers[i]) % 16 != 0) return CUDNN_STATUS_BAD_PARAM;
    at[ids[i]] = pointers[i];
  }
  const std::int64_t workspace = engines[p.engine].workspace;
  if (workspace > 0 &&
      !is_device_memory(v.one<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE), static_cast<std::size_t>(workspace)))
    return CUDNN_STATUS_BAD_PARAM;
  const Node& heuristics = p.node(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  std::vector<std::int64_t> key{p.number};
  for (void* pointer : pointers) key.push_back(reinterpret_cast<std::intptr_t>(pointer));
  queue(
      handle->stream,
      [graph = heuristics.nodes.at(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)[0],
       tf32 = uses_tensor_cores(p.engine), at] { run(*graph, tf32, at); },
      key);
  return CUDNN_STATUS_SUCCESS;
}
