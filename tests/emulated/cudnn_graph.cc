// cuDNN's graph API as lpsgd uses it: descriptors, engines and plans of a convolution. Engines differ as
// cuDNN's do: the first needs tensor cores, some cannot finish a plan or ask for more workspace than there
// is, and of those that transform their operands one has about twice float32's error and one a thousand times
// that.
#include <chrono>
#include <iterator>
#include <memory>
#include <thread>
#include <vector>

#include "tests/emulated/cudnn.h"
#include "tests/emulated/machine.h"

using namespace lpsgd::emulated;

namespace {

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
  int lost_bits = 0;  // of float32's 24, in results
};
const Engine engines[] = {
    {{CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}, 0, true},
    {{CUDNN_NUMERICAL_NOTE_TENSOR_CORE}, 1 << 16, true},
    {{}, 0, false},
    {{}, std::int64_t{1} << 50, true},
    {{CUDNN_NUMERICAL_NOTE_WINOGRAD, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6}, 0, true, 10},
    {{CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}, 0, true},
    {{}, 4096, true},
    {{CUDNN_NUMERICAL_NOTE_WINOGRAD, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4}, 0, true, 1},
};
constexpr int fallback = 6;  // and those after it

bool uses_tensor_cores(int engine) {
  return !engines[engine].notes.empty() && engines[engine].notes[0] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
}

/// Whether an engine is offered for a graph: none fuses a grouped convolution.
bool supports(const Node& graph, int engine) {
  const ConvolutionKind kind = convolution_kind(graph);
  if (delay_of("LPSGD_EMULATED_MISSING_ENGINES", engine) > 0 ||
      delay_of("LPSGD_EMULATED_MISSING_LAYOUTS", kind.is_nchw ? 1 : 0) > 0)
    return false;
  return !kind.is_fused || (!kind.is_grouped && (engine < 2 || engine > 3));
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
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      std::this_thread::sleep_for(std::chrono::duration<double>(delay_of(
          "LPSGD_EMULATED_SLOW_HEURISTICS", node.one<cudnnBackendHeurMode_t>(CUDNN_ATTR_ENGINEHEUR_MODE))));
      break;
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      if (!node.has(CUDNN_ATTR_OPERATIONGRAPH_HANDLE)) return CUDNN_STATUS_BAD_PARAM;
      if (!convolution_kind(node).is_consistent) status = CUDNN_STATUS_BAD_PARAM;
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
                                       std::int64_t max, std::int64_t* count, void* values) {
  const Node& node = of(descriptor);
  if (!node.finalized) return CUDNN_STATUS_BAD_PARAM;
  *count = 0;
  // The caller has made the descriptors that are filled.
  const auto give = [&](int engine, const Node& graph_of) {
    if (*count >= max) return;
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
        for (int e = fallback; e < static_cast<int>(std::size(engines)); ++e)
          if (supports(graph, e)) give(e, node);
      } else {
        for (int e = 0; e < fallback; ++e)
          if (supports(graph, e)) give(e, node);
      }
      return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_ENGINECFG_ENGINE:
      give(node.engine, node);
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES:  // one of each
      give(node.engine, node);
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE:
      if (type != CUDNN_TYPE_KNOB_TYPE) return CUDNN_STATUS_BAD_PARAM;
      *count = 1;
      *static_cast<cudnnBackendKnobType_t*>(values) = CUDNN_KNOB_TYPE_TILE_SIZE;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE:
      return number(10 * node.engine);
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
      for (const cudnnBackendNumericalNote_t note : engines[node.engine].notes)
        if (*count < max) static_cast<cudnnBackendNumericalNote_t*>(values)[(*count)++] = note;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
      return number(node.engine);
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      return number(engines[node.engine].workspace);
    default:
      undefined("an attribute of a cuDNN descriptor that is not emulated");
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
  const auto& graph = heuristics.nodes.at(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)[0];
  const ConvolutionKind kind = convolution_kind(*graph);
  const Rounding rounding{
      uses_tensor_cores(p.engine),
      engines[p.engine].lost_bits +
          static_cast<int>(delay_of("LPSGD_EMULATED_LOST_BITS", static_cast<int>(kind.stride)))};
  queue(
      handle->stream, [graph, rounding, at] { run_convolution(*graph, rounding, at); }, key);
  queue_delay(handle->stream, delay_of("LPSGD_EMULATED_SLOW_ENGINES", p.engine));
  queue_delay(handle->stream, delay_of("LPSGD_EMULATED_SLOW_LAYOUTS", kind.is_nchw ? 1 : 0));
  queue_delay(handle->stream, delay_of("LPSGD_EMULATED_SLOW_STRIDES", static_cast<int>(kind.stride)));
  return CUDNN_STATUS_SUCCESS;
}
