// The cases themselves.
#include <fmt/format.h>

#include "tests/nn/operation_cases.h"

namespace lpsgd {
namespace {

using Cases = std::vector<OperationCase>;

void add_convolutions(Cases& out) {
  const auto add = [&](std::int64_t batch, const Shape& in, Size2 kernel, Size2 stride, Size2 pad,
                       std::int64_t filters, std::int64_t groups, bool bias, bool relu) {
    out.push_back(convolution_case(batch, in, {kernel, stride, pad, filters, groups, bias}, relu));
  };
  add(4, {8, 8, 16}, {3, 3}, {1, 1}, {1, 1}, 16, 1, false, false);
  add(4, {8, 8, 16}, {3, 3}, {1, 1}, {1, 1}, 32, 1, true, true);
  add(3, {9, 7, 3}, {3, 3}, {2, 2}, {1, 1}, 8, 1, true, false);
  add(2, {7, 6, 3}, {3, 2}, {2, 1}, {1, 0}, 6, 1, false, true);
  add(2, {8, 8, 2}, {3, 3}, {4, 4}, {0, 0}, 4, 1, false, false);  // rows that no window reaches
  add(2, {13, 13, 16}, {5, 5}, {1, 1}, {2, 2}, 32, 2, true, true);
  add(2, {9, 9, 24}, {3, 3}, {1, 1}, {1, 1}, 24, 24, false, false);
  add(5, {1, 1, 5}, {1, 1}, {1, 1}, {0, 0}, 7, 1, true, false);
  add(2, {10, 10, 64}, {1, 1}, {2, 2}, {0, 0}, 128, 1, false, false);
  add(2, {35, 35, 3}, {11, 11}, {4, 4}, {2, 2}, 64, 1, true, true);
  add(3, {15, 14, 3}, {7, 7}, {2, 2}, {3, 3}, 16, 1, false, false);
  add(2, {9, 11, 1}, {3, 5}, {3, 2}, {0, 2}, 8, 1, true, false);
  add(2, {12, 12, 4}, {4, 4}, {4, 4}, {0, 0}, 16, 1, true, false);
  add(3, {7, 6, 24}, {1, 1}, {1, 1}, {0, 0}, 40, 1, true, true);
  add(2, {9, 9, 64}, {1, 1}, {1, 1}, {0, 0}, 32, 1, false, false);
  // Strides over many channels, which use im2col: in one part and in several, borders on all sides.
  add(3, {11, 9, 64}, {3, 3}, {2, 2}, {1, 1}, 72, 1, false, false);
  add(2, {60, 49, 96}, {3, 3}, {2, 2}, {1, 1}, 64, 1, false, false);
  add(2, {12, 13, 64}, {2, 3}, {1, 3}, {0, 2}, 64, 1, false, false);
  out.back().input_gradients = false;
  // Strides over fewer channels than a vector has, where oneDNN has a fault (nn/cpu/conv.cc).
  add(16, {32, 32, 3}, {1, 1}, {2, 2}, {0, 0}, 16, 1, false, false);
  add(8, {56, 56, 1}, {1, 1}, {2, 2}, {0, 0}, 8, 1, true, true);
  add(3, {18, 12, 7}, {1, 1}, {3, 2}, {0, 0}, 24, 1, false, false);
  add(4, {16, 16, 12}, {1, 1}, {2, 2}, {0, 0}, 16, 2, false, false);
  // Columns of the kernel, and rows, that only meet the border.
  add(4, {4, 1, 16}, {3, 3}, {2, 2}, {1, 1}, 16, 1, true, false);
  add(3, {1, 1, 8}, {3, 5}, {1, 3}, {1, 2}, 24, 1, false, false);
  add(2, {9, 2, 16}, {3, 7}, {2, 4}, {1, 3}, 32, 2, false, true);
  // Large enough for parts of its rows.
  add(1, {130, 129, 64}, {1, 1}, {1, 1}, {0, 0}, 64, 1, false, false);
  // Large enough for Winograd's tiles: whole ones, cut ones, with and without a border.
  add(2, {16, 16, 32}, {3, 3}, {1, 1}, {1, 1}, 32, 1, false, false);
  add(3, {14, 13, 48}, {3, 3}, {1, 1}, {1, 1}, 32, 1, true, true);
  add(1, {29, 24, 32}, {3, 3}, {1, 1}, {0, 0}, 64, 1, true, false);
  add(5, {13, 14, 32}, {3, 3}, {1, 1}, {1, 1}, 48, 1, true, true);
  out.back().input_gradients = false;
  add(4, {182, 182, 32}, {3, 3}, {1, 1}, {1, 1}, 32, 1, true, false);  // many
  add(2, {18, 15, 64}, {3, 3}, {1, 1}, {1, 1}, 32, 1, true, true);
  out.back().training = false;
  // The same with 16 channels, and with borders of zero and two pixels.
  add(2, {16, 16, 16}, {3, 3}, {1, 1}, {1, 1}, 16, 1, false, false);
  add(3, {14, 13, 16}, {3, 3}, {1, 1}, {1, 1}, 32, 1, true, true);
  add(2, {19, 18, 48}, {3, 3}, {1, 1}, {0, 0}, 16, 1, true, false);
  add(2, {15, 17, 16}, {3, 3}, {1, 1}, {2, 2}, 48, 1, false, true);
  add(2, {16, 14, 32}, {3, 3}, {1, 1}, {2, 0}, 16, 1, false, false);
  add(5, {13, 14, 48}, {3, 3}, {1, 1}, {1, 1}, 16, 1, true, true);
  out.back().input_gradients = false;
  // So many channels that oneDNN multiplies: in one part and in several.
  add(3, {14, 14, 96}, {3, 3}, {1, 1}, {1, 1}, 80, 1, true, true);
  add(4, {55, 48, 128}, {3, 3}, {1, 1}, {1, 1}, 48, 1, false, false);
}

void add_dense(Cases& out) {
  const auto add = [&](std::int64_t batch, Shape in, std::int64_t units, bool bias, bool relu) {
    OperationCase c;
    c.name = fmt::format("dense {} x {} to {}{}{}", batch, shape_text(in), units, bias ? " bias" : "",
                         relu ? " relu" : "");
    c.batch = batch;
    c.output = in;
    c.output.back() = units;
    c.parameters = {{units, in.back()}};
    if (bias) c.parameters.push_back({units});
    c.inputs = {std::move(in)};
    c.relu = relu;
    c.make = [](Backend& backend, const Binding& b) { return backend.dense(b); };
    out.push_back(std::move(c));
  };
  add(1, {1}, 1, true, false);
  add(5, {7}, 3, true, true);
  add(16, {64}, 10, true, false);
  add(33, {129}, 65, false, true);
  add(3, {5, 24}, 40, true, false);
  add(64, {256}, 512, true, true);
}

void add_batch_norms(Cases& out) {
  const auto add = [&](std::int64_t batch, Shape shape, bool residual, bool relu, int gradients,
                       bool training) {
    OperationCase c;
    c.name = fmt::format("batch_norm {} x {}{}{}, {} gradients{}", batch, shape_text(shape),
                         residual ? " residual" : "", relu ? " relu" : "", gradients,
                         training ? "" : ", evaluation");
    c.batch = batch;
    c.parameters = {{shape.back()}, {shape.back()}};
    c.buffers = shape.back();
    c.inputs = {shape};
    c.output = std::move(shape);
    c.residual = residual;
    c.relu = relu;
    c.gradients = gradients;
    c.masked = gradients > 1 || (residual && relu);
    c.training = training;
    c.make = [](Backend& backend, const Binding& b) { return backend.batch_norm(b, {1e-3, 0.1}); };
    out.push_back(std::move(c));
  };
  for (const bool relu : {false, true}) {
    add(4, {5, 5, 16}, false, relu, 1, true);
    add(4, {5, 5, 16}, true, relu, 1, true);
    add(3, {4, 3, 3}, true, relu, 2, true);
    add(2, {3, 3, 130}, false, relu, 3, true);
    add(4, {5, 5, 16}, true, relu, 1, false);
  }
  add(16, {5}, false, true, 1, true);
  add(7, {1, 1, 1}, false, false, 1, true);
  add(2, {1, 1, 8}, false, false, 1, true);
  add(3, {2, 2, 1028}, true, true, 1, true);
  add(64, {32, 32, 4}, false, true, 1, true);
  add(128, {16, 16, 64}, true, true, 1, true);
}

void add_elementwise(Cases& out) {
  const auto add = [&](const std::string& name, std::int64_t batch, Shape shape, int inputs, int gradients,
                       auto make) -> OperationCase& {
    OperationCase c;
    c.name = fmt::format("{} {} x {}, {} gradients", name, batch, shape_text(shape), gradients);
    c.batch = batch;
    c.inputs.assign(static_cast<std::size_t>(inputs), shape);
    c.output = std::move(shape);
    c.gradients = gradients;
    c.make = make;
    return out.emplace_back(std::move(c));
  };
  for (const auto& [name, kind] : {std::pair{"relu", Activation::relu},
                                   {"sigmoid", Activation::sigmoid},
                                   {"tanh", Activation::tanh},
                                   {"relu6", Activation::relu6},
                                   {"hardsigmoid", Activation::hardsigmoid},
                                   {"hardswish", Activation::hardswish},
                                   {"silu", Activation::silu},
                                   {"gelu", Activation::gelu}}) {
    const auto make = [kind = kind](Backend& backend, const Binding& b) {
      return backend.activation(b, kind);
    };
    const bool has_kinks = kind == Activation::relu6 || kind >= Activation::hardsigmoid;
    const float range = has_kinks ? 12 : 1;
    add(name, 3, {5, 7, 3}, 1, 1, make).range = range;
    add(name, 8, {64}, 1, 3, make).range = range;
    OperationCase& in_place = add(std::string(name) + " in place", 8, {33}, 1, 2, make);
    in_place.range = range;
    in_place.in_place = gradient_reads_output(kind);
    in_place.over_gradient = true;
  }
  const auto multiply = [](Backend& backend, const Binding& b) { return backend.multiply(b); };
  add("multiply", 3, {5, 7, 3}, 2, 1, multiply);
  add("multiply", 5, {64}, 2, 1, multiply);
  OperationCase& many = add("multiply by a gate", 4100, {1, 2, 4}, 2, 1, multiply);
  many.inputs[1] = {1, 1, 4};
  for (const Shape& image : {Shape{5, 7, 3}, Shape{1, 2, 8}, Shape{9, 9, 16}, Shape{20, 21, 136},
                             Shape{3, 1, 77}, Shape{40, 40, 4}})
    for (const bool flat : {false, true}) {
      OperationCase& gate =
          add(flat ? "multiply by features" : "multiply by a gate", 4, image, 2, 1, multiply);
      gate.inputs[1] = flat ? Shape{image[2]} : Shape{1, 1, image[2]};
    }
  const auto sum = [](Backend& backend, const Binding& b) { return backend.add(b); };
  for (const bool relu : {false, true}) {
    OperationCase& two = add(relu ? "add relu" : "add", 3, {5, 7, 3}, 2, 1, sum);
    two.relu = relu;
    two.masked = true;
    two.input_gradients = false;  // an input's gradient is the output's
    OperationCase& three = add(relu ? "add relu" : "add", 4, {16}, 3, 2, sum);
    three.relu = relu;
    three.masked = true;
    three.input_gradients = false;
  }
  const auto dropout = [](Backend& backend, const Binding& b) { return backend.dropout(b, 0.3); };
  add("dropout", 3, {5, 7, 3}, 1, 1, dropout);
  add("dropout", 4, {64}, 1, 2, dropout);
  OperationCase& dropped = add("dropout in place", 4, {3}, 1, 2, dropout);
  dropped.in_place = dropped.over_gradient = true;
  add("dropout in evaluation", 4, {64}, 1, 1, dropout).training = false;
  const auto scale = [](Backend& backend, const Binding& b) { return backend.scale(b, -0.7); };
  add("scale", 3, {5, 7, 3}, 1, 1, scale);
  add("scale", 8, {64}, 1, 3, scale);
  OperationCase& scaled = add("scale in place", 8, {33}, 1, 2, scale);
  scaled.in_place = scaled.over_gradient = true;
  const auto first = [](Backend& backend, const Binding& b) { return backend.channels_first(b); };
  for (const Shape& shape : {Shape{5, 7, 3}, Shape{32, 33, 34}, Shape{1, 2, 70}, Shape{40, 41, 4},
                             Shape{3, 3, 130}, Shape{1, 8, 1032}, Shape{12, 12, 72}, Shape{65, 33, 1}}) {
    OperationCase& c = add("channels_first", 2, shape, 1, 1, first);
    c.output = {elements_of(shape).value_or(0)};
  }
  const auto concat = [](Backend& backend, const Binding& b) { return backend.concat(b); };
  for (const auto& widths : {std::vector<std::int64_t>{3, 5}, {16, 12, 4}, {8, 1, 7, 32}}) {
    OperationCase& c = add("concat", 3, {4, 5, 0}, static_cast<int>(widths.size()), 1, concat);
    c.output = {4, 5, 0};
    for (std::size_t i = 0; i < widths.size(); ++i) {
      c.inputs[i].back() = widths[i];
      c.output.back() += widths[i];
      c.name += fmt::format(" {}", widths[i]);
    }
  }
}

void add_pools(Cases& out) {
  for (const PoolDesc::Kind kind : {PoolDesc::Kind::max, PoolDesc::Kind::average}) {
    const auto add = [&](Shape in, Size2 kernel, Size2 stride, Size2 pad, bool ceil, bool count_pad,
                         float step = 0) {
      const auto extent = [&](std::int64_t n, std::int64_t k, std::int64_t s, std::int64_t p) {
        std::int64_t e = (n + 2 * p - k + (ceil ? s - 1 : 0)) / s + 1;
        if (ceil && (e - 1) * s >= n + p) --e;
        return e;
      };
      OperationCase c;
      c.name =
          fmt::format("{} pool {} kernel {}x{} stride {}x{} pad {}x{}{}{}",
                      kind == PoolDesc::Kind::max ? "max" : "average", shape_text(in), kernel.h, kernel.w,
                      stride.h, stride.w, pad.h, pad.w, ceil ? " ceil" : "", count_pad ? "" : " inside");
      if (step > 0) c.name += " of equal values";
      c.step = step;
      c.output = {extent(in[0], kernel.h, stride.h, pad.h), extent(in[1], kernel.w, stride.w, pad.w), in[2]};
      c.inputs = {std::move(in)};
      const PoolDesc desc{kind, kernel, stride, pad, count_pad};
      c.make = [desc](Backend& backend, const Binding& b) { return backend.pool(b, desc); };
      out.push_back(std::move(c));
    };
    add({8, 8, 16}, {2, 2}, {2, 2}, {0, 0}, false, true);
    add({9, 7, 3}, {3, 3}, {2, 2}, {1, 1}, true, true);
    add({9, 7, 3}, {3, 3}, {2, 2}, {1, 1}, true, false);
    add({9, 7, 16}, {3, 3}, {2, 2}, {1, 1}, true, false);
    add({8, 8, 16}, {3, 3}, {2, 2}, {0, 0}, false, true);  // the last row and column lie in no window
    add({11, 9, 8}, {3, 3}, {2, 2}, {0, 0}, false, true);
    add({7, 8, 24}, {3, 3}, {1, 1}, {1, 1}, false, true);
    add({7, 8, 5}, {3, 2}, {1, 3}, {1, 0}, false, false);
    add({7, 7, 64}, {7, 7}, {7, 7}, {0, 0}, false, true);
    // Windows of many pixels: packs of channels that fill a block's width, or not, and more than one block's.
    add({17, 13, 24}, {17, 13}, {17, 13}, {0, 0}, false, true);
    add({9, 9, 5}, {9, 9}, {9, 9}, {0, 0}, false, true);
    add({20, 18, 272}, {10, 9}, {5, 9}, {4, 0}, true, false);
    add({8, 8, 4}, {2, 2}, {3, 3}, {0, 0}, false, true);  // pixels in no window
    add({8, 8, 8}, {2, 2}, {3, 3}, {0, 0}, false, true);
    for (const std::int64_t channels : {8, 3}) {
      add({9, 7, channels}, {3, 3}, {2, 2}, {1, 1}, true, false, 0.5f);
      add({8, 9, channels}, {2, 2}, {2, 2}, {1, 1}, false, true, 0.5f);
      add({7, 8, channels}, {3, 3}, {1, 1}, {1, 1}, false, true, 0.5f);
    }
  }
}

void add_lrns(Cases& out) {
  for (const auto& [shape, desc] : {std::pair{Shape{5, 4, 16}, LrnDesc{5, 1e-4, 0.75, 1}},
                                    {Shape{3, 2, 40}, LrnDesc{5, 2, 0.75, 1}},
                                    {Shape{2, 3, 8}, LrnDesc{3, 3, 0.75, 0.5}},
                                    {Shape{2, 3, 24}, LrnDesc{5, 1, 0.6, 2}},
                                    {Shape{3, 3, 7}, LrnDesc{4, 2, 0.75, 1}},
                                    {Shape{2, 3, 4}, LrnDesc{9, 3, 1.5, 2}},
                                    {Shape{3, 3, 37}, LrnDesc{1, 1, 0.5, 0.5}}}) {
    OperationCase c;
    c.name = fmt::format("lrn {} size {} beta {}", shape_text(shape), desc.size, desc.beta);
    c.inputs = {shape};
    c.output = shape;
    c.make = [desc = desc](Backend& backend, const Binding& b) { return backend.lrn(b, desc); };
    out.push_back(std::move(c));
  }
}

void add_recurrent(Cases& out) {
  const auto lstm = [&](std::int64_t batch, std::int64_t frames, std::int64_t features, std::int64_t cell,
                        std::int64_t projection, bool bias, std::vector<std::int32_t> lengths,
                        bool input_gradient, std::vector<std::int32_t> continues = {}) -> OperationCase& {
    OperationCase c;
    const std::int64_t width = projection > 0 ? projection : cell;
    c.name = fmt::format("lstm {} x {} frames of {} to {}, projection {}{}{}{}", batch, frames, features,
                         cell, projection, bias ? " bias" : "", lengths.empty() ? "" : ", unequal",
                         continues.empty() ? "" : ", continuing");
    c.batch = batch;
    c.inputs = {{frames, features}};
    c.output = {frames, width};
    c.parameters = {{4 * cell, features}, {4 * cell, width}};
    if (bias) c.parameters.insert(c.parameters.end(), 2, {4 * cell});
    if (projection > 0) c.parameters.push_back({projection, cell});
    c.lengths = std::move(lengths);
    c.carried = {{width}, {cell}};
    c.continues = std::move(continues);
    c.input_gradients = input_gradient;
    const LstmDesc desc{cell, projection, bias};
    c.make = [desc](Backend& backend, const Binding& b) { return backend.lstm(b, desc); };
    out.push_back(std::move(c));
    return out.back();
  };
  lstm(3, 4, 6, 5, 0, true, {}, true);
  lstm(4, 5, 8, 16, 0, true, {2, 5, 1, 4}, true);
  lstm(4, 5, 7, 9, 3, true, {2, 5, 1, 4}, true);
  lstm(3, 4, 6, 7, 5, true, {4, 1, 3}, true);  // in bfloat16 no frame but the first is aligned
  lstm(2, 3, 8, 16, 8, false, {}, false);
  lstm(3, 1, 4, 3, 0, false, {}, true);
  lstm(16, 20, 32, 48, 24, true, {}, true);
  lstm(3, 4, 6, 7, 5, true, {}, true, {1, 0, 1});
  lstm(4, 5, 8, 16, 0, true, {5, 0, 2, 5}, true, {1, 1, 1, 0});
  lstm(2, 1, 8, 16, 8, false, {}, false, {0, 1});
  lstm(2, 3, 5, 4, 0, true, {0, 0}, true);  // nothing to compute
  lstm(16, 100, 8, 16, 8, true, {}, true, {1, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1});
  lstm(2, 300, 4, 8, 0, true, {37, 120}, true);  // the CPU computes some of the chunks
  lstm(3, 4, 6, 7, 5, true, {4, 1, 4}, true, {1, 1, 0}).training = false;

  const auto embedding = [&](std::int64_t batch, std::int64_t count, std::int64_t vocabulary,
                             std::int64_t width) {
    OperationCase c;
    c.name = fmt::format("embedding {} x {} of {} to {}", batch, count, vocabulary, width);
    c.batch = batch;
    c.inputs = {{count}};
    c.output = {count, width};
    c.parameters = {{vocabulary, width}};
    c.tokens = vocabulary;
    c.make = [](Backend& backend, const Binding& b) { return backend.embedding(b); };
    out.push_back(std::move(c));
  };
  embedding(3, 5, 6, 7);
  embedding(2, 4, 100, 16);
  embedding(20, 35, 50, 300);  // every word often, more tokens than a block has threads
}

void add_attention(Cases& out) {
  const auto attention = [&](std::int64_t batch, std::int64_t frames, std::int64_t heads, std::int64_t width,
                             bool causal, bool joined, std::vector<std::int32_t> lengths = {},
                             double dropout = 0) -> OperationCase& {
    OperationCase c = attention_case(batch, frames, {heads, causal, dropout}, width);
    if (!joined) {
      c.name += ", three inputs";
      c.inputs.assign(3, c.output);
    }
    if (!lengths.empty()) c.name += ", unequal";
    c.lengths = std::move(lengths);
    out.push_back(std::move(c));
    return out.back();
  };
  attention(2, 1, 1, 1, false, true);
  attention(3, 5, 2, 4, false, true);
  attention(3, 5, 2, 4, true, true);
  attention(2, 7, 3, 5, true, false);
  attention(4, 9, 2, 8, false, true, {9, 1, 0, 5});
  attention(4, 9, 2, 8, true, false, {3, 9, 0, 8});
  attention(2, 65, 3, 16, false, true);
  attention(2, 33, 2, 20, true, true);   // in bfloat16 not every head is aligned
  attention(1, 300, 2, 32, true, true);  // several blocks of queries
  attention(1, 300, 1, 64, false, true, {259});
  attention(3, 13, 2, 8, false, true, {}, 0.3);
  attention(4, 9, 3, 5, true, false, {3, 9, 0, 8}, 0.1);
  attention(1, 300, 2, 16, true, true, {}, 0.5);
  attention(3, 6, 2, 8, false, true).training = false;
  attention(2, 6, 2, 8, false, false).input_gradients = false;

  const auto layer_norm = [&](std::int64_t batch, const Shape& shape, double eps) -> OperationCase& {
    out.push_back(layer_norm_case(batch, shape, eps));
    return out.back();
  };
  layer_norm(3, {5, 16}, 1e-5);
  layer_norm(2, {7, 33}, 1e-6);
  layer_norm(4, {1}, 1e-5);  // the output is the bias
  layer_norm(2, {5, 4, 96}, 1e-5);
  layer_norm(64, {70, 24}, 1e-5);
  // Widths that a GPU divides among 32 or 256 threads in its own ways.
  layer_norm(3, {3, 296}, 1e-5);
  layer_norm(3, {2, 768}, 1e-5);
  layer_norm(2, {3, 601}, 1e-5);
  layer_norm(2, {3, 1600}, 1e-5);
  layer_norm(2, {3, 5000}, 1e-2);
  out.push_back(layer_norm_case(3, {5, 16}, 1e-5, false));
  out.push_back(layer_norm_case(2, {3, 601}, 1e-5, false));
  layer_norm(2, {5, 40}, 1e-5).training = false;
  layer_norm(2, {5, 40}, 1e-5).input_gradients = false;
}

void add_group_norms(Cases& out) {
  const auto add = [&](std::int64_t batch, const Shape& shape, std::int64_t groups,
                       bool relu = false) -> OperationCase& {
    out.push_back(group_norm_case(batch, shape, groups, relu));
    return out.back();
  };
  for (const bool relu : {false, true}) {
    add(3, {5, 5, 16}, 4, relu);
    add(2, {4, 4, 64}, 32, relu);  // two channels each
    add(2, {7, 3, 10}, 10, relu);  // one each
    add(2, {3, 3, 96}, 1, relu);
  }
  add(5, {12}, 3);
  add(4, {1, 1, 8}, 8);  // the output is the bias
  // Groups that a GPU's warp or block has in registers, and larger ones, in packs of 8, 4, 2 and 1.
  add(3, {16, 16, 32}, 4, true);
  add(2, {20, 20, 48}, 2);
  add(2, {40, 40, 12}, 3, true);
  add(2, {30, 31, 4}, 2);
  add(2, {50, 50, 6}, 3, true);
  add(2, {60, 60, 3}, 3);
  add(2, {9, 9, 40}, 5).training = false;
  add(2, {9, 9, 40}, 5, true).input_gradients = false;
}

void add_frames(Cases& out) {
  const auto add = [&](const char* name, std::int64_t batch, Shape in, Shape result,
                       std::vector<Shape> parameters, auto make) -> OperationCase& {
    OperationCase c;
    c.name = fmt::format("{} {} x {}", name, batch, shape_text(in));
    c.batch = batch;
    c.inputs = {std::move(in)};
    c.output = std::move(result);
    c.parameters = std::move(parameters);
    c.make = make;
    out.push_back(std::move(c));
    return out.back();
  };
  const auto position = [](Backend& backend, const Binding& b) { return backend.position(b); };
  add("position", 3, {5, 7}, {5, 7}, {{5, 7}}, position);
  add("position, longer table", 4, {6, 8}, {6, 8}, {{9, 8}}, position);
  add("position in place", 4, {6, 8}, {6, 8}, {{6, 8}}, position).in_place = true;
  add("position", 40, {64, 1030}, {64, 1030}, {{64, 1030}},
      position);  // a GPU's threads take several samples
  add("position without input gradient", 65, {3, 16}, {3, 16}, {{4, 16}}, position).input_gradients = false;
  add("position, evaluated", 2, {3, 16}, {3, 16}, {{4, 16}}, position).training = false;
  const auto class_token = [](Backend& backend, const Binding& b) { return backend.class_token(b); };
  add("class token", 3, {5, 7}, {6, 7}, {{7}}, class_token);
  add("class token", 70, {4, 16}, {5, 16}, {{16}}, class_token);
  add("class token without input gradient", 2, {4, 8}, {5, 8}, {{8}}, class_token).input_gradients = false;
  for (const std::int64_t index : {0, 3}) {
    const auto select = [index](Backend& backend, const Binding& b) {
      return backend.select_frame(b, index);
    };
    add("select frame", 3, {4, 7}, {7}, {}, select);
    add("select frame", 5, {4, 16}, {16}, {}, select);
  }
}

/// The cases from `first` on again, as columns of a wider array: at multiples of 8 values, and at odd ones.
void add_columns(Cases& out, std::size_t first) {
  const std::size_t end = out.size();
  for (std::size_t i = first; i < end; ++i) {
    if (out[i].residual || out[i].gradients > 1) continue;
    for (const auto& [before, behind] : {std::pair{8, 16}, {3, 2}}) {
      OperationCase c = out[i];
      c.before = before;
      c.behind = behind;
      c.name += fmt::format(", columns after {} and before {}", before, behind);
      out.push_back(std::move(c));
    }
  }
}

}  // namespace

std::vector<OperationCase> operation_cases() {
  Cases out;
  add_convolutions(out);
  add_dense(out);
  const std::size_t norms = out.size();
  add_batch_norms(out);
  add_columns(out, norms);
  add_group_norms(out);
  add_elementwise(out);
  const std::size_t pools = out.size();
  add_pools(out);
  add_columns(out, pools);
  add_lrns(out);
  add_recurrent(out);
  add_attention(out);
  add_frames(out);
  return out;
}

OperationCase attention_case(std::int64_t batch, std::int64_t frames, const AttentionDesc& desc,
                             std::int64_t width) {
  OperationCase c;
  c.name = fmt::format("attention {} x {} frames, {} heads of {}{}", batch, frames, desc.heads, width,
                       desc.causal ? ", causal" : "");
  if (desc.dropout > 0) c.name += fmt::format(", {} of the weights dropped", desc.dropout);
  c.batch = batch;
  c.inputs = {{frames, 3 * desc.heads * width}};
  c.output = {frames, desc.heads * width};
  c.range = 2;
  c.make = [desc](Backend& backend, const Binding& b) { return backend.attention(b, desc); };
  return c;
}

OperationCase group_norm_case(std::int64_t batch, const Shape& shape, std::int64_t groups, bool relu) {
  OperationCase c;
  c.name =
      fmt::format("group norm {} x {}, {} groups{}", batch, shape_text(shape), groups, relu ? ", relu" : "");
  c.batch = batch;
  c.parameters = {{shape.back()}, {shape.back()}};
  c.inputs = {shape};
  c.output = shape;
  c.relu = relu;
  c.make = [groups](Backend& backend, const Binding& b) { return backend.group_norm(b, {groups, 1e-4}); };
  return c;
}

OperationCase layer_norm_case(std::int64_t batch, const Shape& shape, double eps, bool bias) {
  OperationCase c;
  c.name = fmt::format("layer norm {} x {}{}", batch, shape_text(shape), bias ? "" : ", no bias");
  c.batch = batch;
  c.parameters = {{shape.back()}, {shape.back()}};
  c.inputs = {shape};
  c.output = shape;
  if (!bias) c.parameters.pop_back();
  c.make = [eps, bias](Backend& backend, const Binding& b) { return backend.layer_norm(b, {eps, bias}); };
  return c;
}

}  // namespace lpsgd
