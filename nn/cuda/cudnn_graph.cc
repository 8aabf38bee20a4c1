#include "nn/cuda/cudnn_graph.h"

#include <fmt/format.h>

#include "core/error.h"
#include "nn/cuda/check.h"

namespace lpsgd {

void throw_cudnn_error(cudnnStatus_t status, std::source_location where) {
  char why[512] = "";
  cudnnGetLastErrorString(why, sizeof why);
  throw DeviceError(fmt::format("cuDNN: {}{}{} at {}:{}", cudnnGetErrorString(status), why[0] ? ": " : "",
                                why, where.file_name(), where.line()),
                    where);
}

namespace cuda {
namespace {

constexpr std::int64_t tensor_alignment = 16;  // bytes of every tensor's address
constexpr std::int64_t virtual_id = 100;

cudnnDataType_t cudnn_type(DataType type) {
  return type == DataType::f32 ? CUDNN_DATA_FLOAT : CUDNN_DATA_BFLOAT16;
}

/// Dimensions in cuDNN's order (N, C, H, W), in memory in the order of `layout`.
Descriptor tensor(std::int64_t id, DataType type, Layout layout, std::int64_t n, const Shape& hwc,
                  bool is_virtual = false) {
  const std::int64_t h = hwc[0], w = hwc[1], c = hwc[2];
  Descriptor d(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  d.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id);
  d.set(CUDNN_ATTR_TENSOR_DATA_TYPE, cudnn_type(type));
  d.set(CUDNN_ATTR_TENSOR_DIMENSIONS, std::vector{n, c, h, w});
  d.set(CUDNN_ATTR_TENSOR_STRIDES, layout == Layout::nhwc
                                       ? std::vector{h * w * c, std::int64_t{1}, w * c, c}
                                       : std::vector{h * w * c, h * w, w, std::int64_t{1}});
  d.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, tensor_alignment);
  if (is_virtual) d.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
  d.finalize();
  return d;
}

Descriptor convolution(const ConvProblem& p) {
  Descriptor d(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  d.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  d.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
  d.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, std::int64_t{2});
  d.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, std::vector{p.pad.h, p.pad.w});
  d.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, std::vector{p.pad.h, p.pad.w});
  d.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, std::vector<std::int64_t>{1, 1});
  d.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, std::vector{p.stride.h, p.stride.w});
  d.finalize();
  return d;
}

Descriptor pointwise(cudnnPointwiseMode_t mode, const Descriptor& x, const Descriptor* b, const Descriptor& y,
                     std::vector<Descriptor>& parts) {
  Descriptor kind(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  kind.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  kind.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT);
  kind.finalize();
  Descriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  if (b) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  operation.finalize();
  parts.push_back(std::move(kind));
  return operation;
}

struct ConvNames {
  cudnnBackendDescriptorType_t operation;
  cudnnBackendAttributeName_t description, input, weights, output, alpha, beta;
};

ConvNames names_of(ConvPass pass) {
  switch (pass) {
    case ConvPass::forward:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
    case ConvPass::input_gradient:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
    case ConvPass::weight_gradient:
      break;
  }
  return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
}

/// The descriptors, at most `max_count`, that an attribute of another one holds.
std::vector<Descriptor> held(const Descriptor& from, cudnnBackendAttributeName_t name,
                             cudnnBackendDescriptorType_t type, std::int64_t max_count) {
  std::vector<Descriptor> out;
  std::vector<cudnnBackendDescriptor_t> handles;
  for (std::int64_t i = 0; i < max_count; ++i) handles.push_back(out.emplace_back(type).get());
  std::int64_t count = 0;
  if (cudnnBackendGetAttribute(from.get(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, max_count, &count,
                               static_cast<void*>(handles.data())) != CUDNN_STATUS_SUCCESS)
    count = 0;
  out.erase(out.begin() + static_cast<std::ptrdiff_t>(std::min(count, max_count)), out.end());
  return out;
}

/// ", 2=1 5=0": the numbers and values of a configuration's knobs.
std::string knobs_of(const Descriptor& configuration) {
  std::string out;
  for (const Descriptor& choice : held(configuration, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                                       CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, CUDNN_KNOB_TYPE_COUNTS)) {
    cudnnBackendKnobType_t type{};
    std::int64_t value = 0, count = 0;
    if (cudnnBackendGetAttribute(choice.get(), CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1,
                                 &count, &type) == CUDNN_STATUS_SUCCESS &&
        cudnnBackendGetAttribute(choice.get(), CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &count,
                                 &value) == CUDNN_STATUS_SUCCESS)
      out += fmt::format("{}{}={}", out.empty() ? ", " : " ", static_cast<int>(type), value);
  }
  return out;
}

}  // namespace

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) {
  check(cudnnBackendCreateDescriptor(type, &handle_));
}
Descriptor::~Descriptor() {
  if (handle_) cudnnBackendDestroyDescriptor(handle_);
}
void Descriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count,
                     const void* values) {
  check(cudnnBackendSetAttribute(handle_, name, type, count, values));
}
void Descriptor::finalize() {
  check(try_finalize());
}

ConvGraph::ConvGraph(const ConvProblem& p, const Target& target)
    : problem_(p), target_(target), graph_(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) {
  const bool fused = p.bias || p.relu;
  const Shape filter{p.kernel.h, p.kernel.w, p.in[2] / p.groups};
  Descriptor conv = convolution(p);
  const auto make = [&](std::int64_t id, DataType type, std::int64_t n, const Shape& hwc,
                        bool is_virtual = false) { return tensor(id, type, p.layout, n, hwc, is_virtual); };
  Descriptor x = make(conv_input, p.type, p.batch, p.in);
  Descriptor w =
      make(conv_weights, p.pass == ConvPass::weight_gradient ? p.gradient_type : p.type, p.out[2], filter);
  Descriptor y = fused ? make(virtual_id, DataType::f32, p.batch, p.out, true)
                       : make(conv_output, p.type, p.batch, p.out);
  const ConvNames names = names_of(p.pass);
  Descriptor operation(names.operation);
  operation.set(names.description, conv);
  operation.set(names.input, x);
  operation.set(names.weights, w);
  operation.set(names.output, y);
  operation.set(names.alpha, 1.0f);
  operation.set(names.beta, 0.0f);
  operation.finalize();
  std::vector<cudnnBackendDescriptor_t> operations{operation.get()};
  parts_.push_back(std::move(conv));
  parts_.push_back(std::move(x));
  parts_.push_back(std::move(w));
  parts_.push_back(std::move(operation));
  if (p.bias) {
    Descriptor bias = make(conv_bias, p.type, 1, {1, 1, p.out[2]});
    Descriptor sum = p.relu ? make(virtual_id + 1, DataType::f32, p.batch, p.out, true)
                            : make(conv_output, p.type, p.batch, p.out);
    Descriptor add = pointwise(CUDNN_POINTWISE_ADD, y, &bias, sum, parts_);
    operations.push_back(add.get());
    parts_.push_back(std::move(bias));
    parts_.push_back(std::move(add));
    parts_.push_back(std::exchange(y, std::move(sum)));
  }
  if (p.relu) {
    Descriptor out = make(conv_output, p.type, p.batch, p.out);
    Descriptor relu = pointwise(CUDNN_POINTWISE_RELU_FWD, y, nullptr, out, parts_);
    operations.push_back(relu.get());
    parts_.push_back(std::move(relu));
    parts_.push_back(std::exchange(y, std::move(out)));
  }
  parts_.push_back(std::move(y));
  graph_.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
             static_cast<std::int64_t>(operations.size()), static_cast<const void*>(operations.data()));
  if (target_.handle) graph_.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &target_.handle);
  graph_.finalize();
}

std::vector<ConvEngine> ConvGraph::engines() const {
  std::vector<ConvEngine> out;
  heuristics(CUDNN_HEUR_MODE_A, out);
  heuristics(CUDNN_HEUR_MODE_FALLBACK, out);
  return out;
}

void ConvGraph::heuristics(cudnnBackendHeurMode_t mode, std::vector<ConvEngine>& out) const {
  // All of them: for compute capability 9.0 cuDNN names up to 36 that use tensor cores before any that fp32
  // may take.
  constexpr std::int64_t max_engines = 256;
  Descriptor finder(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  finder.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph_);
  finder.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  if (target_.device) finder.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *target_.device);
  if (finder.try_finalize() != CUDNN_STATUS_SUCCESS) return;  // nothing to offer
  for (Descriptor& d :
       held(finder, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, max_engines))
    if (std::optional<std::string> transform = allowed_transform(d))
      out.push_back({std::move(d), std::move(*transform)});
}

std::optional<std::string> ConvGraph::allowed_transform(const Descriptor& configuration) const {
  const std::vector<Descriptor> engine =
      held(configuration, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1);
  if (engine.empty()) return std::nullopt;
  cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT] = {};
  std::int64_t count = 0;
  if (cudnnBackendGetAttribute(engine[0].get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                               CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes) != CUDNN_STATUS_SUCCESS)
    return std::nullopt;
  std::string transform;
  for (std::int64_t i = 0; i < count; ++i) {
    switch (notes[i]) {
      case CUDNN_NUMERICAL_NOTE_TENSOR_CORE:
        if (problem_.compute == Compute::fp32) return std::nullopt;  // they take no float32: TF32
        break;
      case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
      case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
        return std::nullopt;
      case CUDNN_NUMERICAL_NOTE_FFT:
        transform = "FFT";
        break;
      case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4:
        transform = "Winograd 4x4";
        break;
      case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6:
        transform = "Winograd 6x6";
        break;
      case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13:
        transform = "Winograd 13x13";
        break;
      case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
        if (problem_.deterministic) return std::nullopt;
        break;
      default:
        break;
    }
  }
  if (!transform.empty() && (problem_.deterministic || problem_.type != DataType::f32)) return std::nullopt;
  return transform;
}

std::optional<ConvPlan> ConvGraph::plan(ConvEngine from) const {
  Descriptor& configuration = from.configuration;
  Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
  if (target_.handle) plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &target_.handle);
  if (target_.device) plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *target_.device);
  if (plan.try_finalize() != CUDNN_STATUS_SUCCESS) return std::nullopt;
  std::int64_t workspace = 0, index = -1, count = 0;
  check(cudnnBackendGetAttribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                 &count, &workspace));
  for (const Descriptor& engine :
       held(configuration, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1))
    cudnnBackendGetAttribute(engine.get(), CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &count,
                             &index);
  const std::string text = fmt::format("engine {}{}{}{}", index, knobs_of(configuration),
                                       from.transform.empty() ? "" : ", ", from.transform);
  return ConvPlan(std::move(configuration), std::move(plan), workspace, text);
}

Descriptor bind_plan(const std::vector<std::pair<ConvTensor, const void*>>& tensors, void* workspace) {
  std::vector<std::int64_t> ids;
  std::vector<const void*> pointers;
  for (const auto& [id, pointer] : tensors) {
    ids.push_back(id);
    pointers.push_back(pointer);
  }
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids);
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
           static_cast<std::int64_t>(pointers.size()), static_cast<const void*>(pointers.data()));
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  pack.finalize();
  return pack;
}

}  // namespace cuda
}  // namespace lpsgd
