// cuDNN's convolutions as lpsgd uses them, of NHWC or NCHW arrays: forward with bias and ReLU, or one of its
// gradients. Sums are taken in double, and inside arrays are NHWC.
#include <algorithm>

#include "tests/emulated/cudnn.h"
#include "tests/emulated/machine.h"
#include "tests/emulated/numbers.h"

namespace lpsgd::emulated {
namespace {

struct Tensor {
  std::int64_t id = 0;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::int64_t n = 0, c = 0, h = 0, w = 0;
  bool nchw = false;
  explicit Tensor(const Node& node)
      : id(node.one(CUDNN_ATTR_TENSOR_UNIQUE_ID)),
        type(node.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE)) {
    const std::vector<std::int64_t> size = node.all(CUDNN_ATTR_TENSOR_DIMENSIONS);
    n = size[0], c = size[1], h = size[2], w = size[3];
    const std::vector<std::int64_t> strides = node.all(CUDNN_ATTR_TENSOR_STRIDES);
    nchw = strides == std::vector<std::int64_t>{h * w * c, h * w, w, 1};
    if (!nchw && strides != std::vector<std::int64_t>{h * w * c, 1, w * c, c})
      undefined("a tensor that is neither NHWC nor NCHW");
  }
  /// Where an element of the NHWC order lies.
  std::int64_t place(std::int64_t i) const {
    if (!nchw) return i;
    const std::int64_t pixel = i / c % (h * w), channel = i % c;
    return (i / (h * w * c) * c + channel) * h * w + pixel;
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

/// Calls body(window, y, first, filters) for each window of the input that `filters` filters of one group,
/// from `first`, are applied to. `window` holds the offset in x of each of its pixels' channels, in the order
/// of the filters, or -1 outside of the input; `y` is the offset of the first filter's output.
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

std::size_t bytes_of(const Tensor& t) {
  return static_cast<std::size_t>(t.elements()) * (t.bf16() ? 2 : 4);
}
std::vector<float> values_of(const Tensor& t, const Pointers& at, bool tf32) {
  if (!is_device_memory(at.at(t.id), bytes_of(t))) undefined("a tensor beyond its memory");
  const std::vector<float> stored = all_of(at.at(t.id), t.bf16(), t.elements(), tf32);
  if (!t.nchw) return stored;
  std::vector<float> out(stored.size());
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = stored[static_cast<std::size_t>(t.place(static_cast<std::int64_t>(i)))];
  return out;
}
void store(const std::vector<double>& values, const Tensor& t, int lost_bits, const Pointers& at) {
  void* const to = at.at(t.id);
  if (!is_device_memory(to, bytes_of(t))) undefined("a tensor beyond its memory");
  for (std::size_t i = 0; i < values.size(); ++i)
    write(to, t.bf16(), t.place(static_cast<std::int64_t>(i)),
          static_cast<float>(lose_bits(values[i], lost_bits)));
}

}  // namespace

void run_convolution(const Node& graph, const Rounding& rounding, const Pointers& at) {
  const auto& operations = graph.nodes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  const Convolution p = convolution_of(*operations[0]);
  const std::int64_t c = p.w.c, size = p.w.h * p.w.w * c;  // of a filter
  const auto overlaps = [&](const Tensor& a, const Tensor& b) {
    return at.contains(a.id) && at.contains(b.id) &&
           overlap(at.at(a.id), bytes_of(a), at.at(b.id), bytes_of(b));
  };
  if (overlaps(p.x, p.w) || overlaps(p.w, p.y) || overlaps(p.x, p.y))
    undefined("a convolution is written over what it reads");
  const bool to_input = p.pass == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
  const bool to_weights = p.pass == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR;
  const auto operand = [&](const Tensor& t, bool reads) {
    return reads ? values_of(t, at, rounding.tf32) : std::vector<float>();
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
      const auto at_y = static_cast<std::size_t>(first_y + o);
      if (to_input)
        add_scaled(static_cast<double>(dy[at_y]), w.data() + (first + o) * size, sum.data(), size);
      else if (to_weights)
        add_scaled(static_cast<double>(dy[at_y]), patch.data(), dw.data() + (first + o) * size, size);
      else
        y[at_y] = dot(patch.data(), w.data() + (first + o) * size, size);
    }
    if (to_input)
      for (std::size_t k = 0; k < window.size(); ++k)
        for (std::int64_t i = 0; i < c && window[k] >= 0; ++i)
          dx[static_cast<std::size_t>(window[k] + i)] +=
              sum[k * static_cast<std::size_t>(c) + static_cast<std::size_t>(i)];
  });
  if (to_input) return store(dx, p.x, rounding.lost_bits, at);
  if (to_weights) return store(dw, p.w, rounding.lost_bits, at);
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
  store(y, out, rounding.lost_bits, at);
}

ConvolutionKind convolution_kind(const Node& graph) {
  const Convolution p = convolution_of(graph.node(CUDNN_ATTR_OPERATIONGRAPH_OPS));
  return {p.x.c % p.w.c == 0 && p.y.c == p.w.n && p.x.n == p.y.n &&
              (p.x.h + 2 * p.pad[0] - p.w.h) / p.stride[0] + 1 == p.y.h &&
              (p.x.w + 2 * p.pad[1] - p.w.w) / p.stride[1] + 1 == p.y.w,
          p.x.c != p.w.c, graph.nodes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).size() > 1, p.x.nchw || p.y.nchw,
          p.stride[0]};
}

}  // namespace lpsgd::emulated
