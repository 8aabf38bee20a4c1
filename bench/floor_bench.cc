// The floor of a training step's time: only the convolutions and dense layers of a network, each as a bare
// oneDNN primitive in the layouts that oneDNN prefers. Forward and both passes of backward are measured.
//   floor_bench NETWORK [--batch N] [--frames N] [--repeat N] [--bf16] [--layers] [--set a.b=value]...
// Prints one JSON object: the sum over layers of each primitive's smallest time, wall and processor time. A
// convolution counts with the faster of oneDNN's direct and Winograd algorithms, and in direct_* with the
// direct one. With --layers, a line for each convolution has its times in ms.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <dnnl.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/config.h"
#include "core/error.h"
#include "nn/graph.h"
#include "nn/ops.h"

namespace {

using dnnl::memory;
using lpsgd::Binding;
using lpsgd::Op;
using lpsgd::Shape;

struct Idle final : Op {
  void forward(const lpsgd::Pass&) override {}
  void backward() override {}
};

/// Measures the oneDNN primitives of a network's layers. Its operations compute nothing.
class FloorBackend final : public lpsgd::Backend {
 public:
  FloorBackend(int repeat, memory::data_type type, bool layers)
      : repeat_(repeat), type_(type), layers_(layers) {}

  struct Sum {
    double wall = 0, cpu = 0;
    void add(double w, double c) {
      wall += w;
      cpu += c;
    }
  };
  Sum best, direct_only;

  void* allocate(std::int64_t) override { return nullptr; }
  void upload(void*, lpsgd::DataType, std::span<const float>, lpsgd::Event*) override {}
  std::unique_ptr<lpsgd::PixelInput> pixel_input(const lpsgd::PixelDesc&) override { return nullptr; }
  void download(std::span<float>, lpsgd::DataType, const void*) override {}
  void finish_planning() override {}
  void prepare_thread() override {}

  std::unique_ptr<Op> conv(const Binding& b, const lpsgd::ConvDesc& d) override {
    const Shape& in = b.inputs[0].shape;
    const auto any = [&](const memory::dims& dims) { return any_of(dims, type_); };
    const memory::desc src = any({b.batch, in[2], in[0], in[1]}),
                       dst = any({b.batch, b.shape[2], b.shape[0], b.shape[1]});
    const std::int64_t inner = in[2] / d.groups;
    const memory::dims dims =
        d.groups == 1 ? memory::dims{d.filters, inner, d.kernel.h, d.kernel.w}
                      : memory::dims{d.groups, d.filters / d.groups, inner, d.kernel.h, d.kernel.w};
    const memory::desc weights = any(dims), weights_gradient = any_of(dims, memory::data_type::f32);
    const memory::dims stride{d.stride.h, d.stride.w}, pad{d.pad.h, d.pad.w};
    const memory::dims pad_r{(b.shape[0] - 1) * d.stride.h + d.kernel.h - in[0] - d.pad.h,
                             (b.shape[1] - 1) * d.stride.w + d.kernel.w - in[1] - d.pad.w};
    const auto of = [&](dnnl::algorithm algorithm) {
      std::array<Best, 3> passes;
      const dnnl::convolution_forward::primitive_desc forward(
          {dnnl::prop_kind::forward_training, algorithm, src, weights, dst, stride, pad, pad_r}, engine_,
          true);
      if (!forward) return passes;
      passes[0] = time(dnnl::convolution_forward(forward), {{DNNL_ARG_SRC, forward.src_desc()},
                                                            {DNNL_ARG_WEIGHTS, forward.weights_desc()},
                                                            {DNNL_ARG_DST, forward.dst_desc()}});
      if (b.inputs[0].gradient) {
        const dnnl::convolution_backward_data::primitive_desc data(
            {algorithm, src, weights, dst, stride, pad, pad_r}, engine_, forward, true);
        if (data)
          passes[1] =
              time(dnnl::convolution_backward_data(data), {{DNNL_ARG_DIFF_SRC, data.diff_src_desc()},
                                                           {DNNL_ARG_WEIGHTS, data.weights_desc()},
                                                           {DNNL_ARG_DIFF_DST, data.diff_dst_desc()}});
      } else {
        passes[1] = {0, 0};
      }
      const dnnl::convolution_backward_weights::primitive_desc gradient(
          {algorithm, src, weights_gradient, dst, stride, pad, pad_r}, engine_, forward, true);
      if (gradient)
        passes[2] = time(dnnl::convolution_backward_weights(gradient),
                         {{DNNL_ARG_SRC, gradient.src_desc()},
                          {DNNL_ARG_DIFF_WEIGHTS, gradient.diff_weights_desc()},
                          {DNNL_ARG_DIFF_DST, gradient.diff_dst_desc()}});
      return passes;
    };
    const std::array<Best, 3> direct = of(dnnl::algorithm::convolution_direct);
    std::array<Best, 3> winograd;
    if (type_ == memory::data_type::f32 && d.groups == 1)
      winograd = of(dnnl::algorithm::convolution_winograd);
    if (layers_) fmt::print("{}x{}x{} to {}, {}x{}:", in[0], in[1], in[2], d.filters, d.kernel.h, d.kernel.w);
    for (std::size_t i = 0; i < direct.size(); ++i) {
      best.add(std::min(direct[i].wall, winograd[i].wall), std::min(direct[i].cpu, winograd[i].cpu));
      direct_only.add(direct[i].wall, direct[i].cpu);
      if (layers_) fmt::print("  {:.2f}", 1e3 * direct[i].wall);
      if (layers_ && winograd[i].wall < infinite) fmt::print(" or {:.2f}", 1e3 * winograd[i].wall);
    }
    if (layers_) fmt::print("\n");
    return std::make_unique<Idle>();
  }

  std::unique_ptr<Op> dense(const Binding& b) override {
    const std::int64_t in = b.inputs[0].shape.back(), out = b.shape.back(), rows = b.elements() / out;
    const auto any = [&](std::int64_t n, std::int64_t m) { return any_of({n, m}, type_); };
    const dnnl::inner_product_forward::primitive_desc forward(
        {dnnl::prop_kind::forward_training, any(rows, in), any(out, in), any(rows, out)}, engine_);
    both(dnnl::inner_product_forward(forward), {{DNNL_ARG_SRC, forward.src_desc()},
                                                {DNNL_ARG_WEIGHTS, forward.weights_desc()},
                                                {DNNL_ARG_DST, forward.dst_desc()}});
    if (b.inputs[0].gradient) {
      const dnnl::inner_product_backward_data::primitive_desc data(
          {any(rows, in), any(out, in), any(rows, out)}, engine_, forward);
      both(dnnl::inner_product_backward_data(data), {{DNNL_ARG_DIFF_SRC, data.diff_src_desc()},
                                                     {DNNL_ARG_WEIGHTS, data.weights_desc()},
                                                     {DNNL_ARG_DIFF_DST, data.diff_dst_desc()}});
    }
    const dnnl::inner_product_backward_weights::primitive_desc gradient(
        {any(rows, in), any_of({out, in}, memory::data_type::f32), any(rows, out)}, engine_, forward);
    both(dnnl::inner_product_backward_weights(gradient),
         {{DNNL_ARG_SRC, gradient.src_desc()},
          {DNNL_ARG_DIFF_WEIGHTS, gradient.diff_weights_desc()},
          {DNNL_ARG_DIFF_DST, gradient.diff_dst_desc()}});
    return std::make_unique<Idle>();
  }

  std::unique_ptr<Op> batch_norm(const Binding&, const lpsgd::BatchNormDesc&) override { return idle(); }
  std::unique_ptr<Op> activation(const Binding&, lpsgd::Activation) override { return idle(); }
  std::unique_ptr<Op> scale(const Binding&, double) override { return idle(); }
  std::unique_ptr<Op> multiply(const Binding&) override { return idle(); }
  std::unique_ptr<Op> add(const Binding&) override { return idle(); }
  std::unique_ptr<Op> concat(const Binding&) override { return idle(); }
  std::unique_ptr<Op> dropout(const Binding&, double) override { return idle(); }
  std::unique_ptr<Op> lrn(const Binding&, const lpsgd::LrnDesc&) override { return idle(); }
  std::unique_ptr<Op> lstm(const Binding&, const lpsgd::LstmDesc&) override { return idle(); }
  std::unique_ptr<Op> embedding(const Binding&) override { return idle(); }
  std::unique_ptr<Op> layer_norm(const Binding&, const lpsgd::LayerNormDesc&) override { return idle(); }
  std::unique_ptr<Op> group_norm(const Binding&, const lpsgd::GroupNormDesc&) override { return idle(); }
  std::unique_ptr<Op> attention(const Binding&, const lpsgd::AttentionDesc&) override { return idle(); }
  std::unique_ptr<Op> position(const Binding&) override { return idle(); }
  std::unique_ptr<Op> class_token(const Binding&) override { return idle(); }
  std::unique_ptr<Op> select_frame(const Binding&, std::int64_t) override { return idle(); }
  std::unique_ptr<Op> pool(const Binding&, const lpsgd::PoolDesc&) override { return idle(); }
  std::unique_ptr<Op> channels_first(const Binding&) override { return idle(); }
  std::unique_ptr<Op> sum(lpsgd::DataType, void*, std::vector<const void*>, const void*,
                          std::int64_t) override {
    return idle();
  }
  std::unique_ptr<lpsgd::LossOp> softmax_cross_entropy(lpsgd::DataType, const void*, void*,
                                                       const lpsgd::LossDesc&) override {
    return nullptr;
  }

 private:
  static memory::desc any_of(const memory::dims& dims, memory::data_type type) {
    return {dims, type, memory::format_tag::any};
  }
  static std::unique_ptr<Op> idle() { return std::make_unique<Idle>(); }

  static constexpr double infinite = 1e30;
  struct Best {
    double wall = infinite, cpu = infinite;
  };

  void both(const dnnl::primitive& primitive, const std::vector<std::pair<int, memory::desc>>& operands) {
    const Best t = time(primitive, operands);
    best.add(t.wall, t.cpu);
    direct_only.add(t.wall, t.cpu);
  }

  Best time(const dnnl::primitive& primitive, const std::vector<std::pair<int, memory::desc>>& operands) {
    std::unordered_map<int, memory> arguments;
    for (const auto& [argument, desc] : operands) {
      memory m(desc, engine_);
      const auto value = [](std::size_t i) { return 0.01f * static_cast<float>(i % 7) - 0.03f; };
      if (desc.data_type() == memory::data_type::f32) {
        auto* values = static_cast<float*>(m.get_data_handle());
        for (std::size_t i = 0; i < desc.get_size() / sizeof(float); ++i) values[i] = value(i);
      } else {
        auto* values = static_cast<lpsgd::Bf16*>(m.get_data_handle());
        for (std::size_t i = 0; i < desc.get_size() / sizeof(lpsgd::Bf16); ++i)
          values[i] = lpsgd::narrow<lpsgd::Bf16>(value(i));
      }
      arguments.emplace(argument, std::move(m));
    }
    Best fastest;
    for (int r = -1; r < repeat_; ++r) {
      const double cpu_before = lpsgd::cpu_seconds(lpsgd::CpuTime::process), before = lpsgd::now_seconds();
      primitive.execute(stream_, arguments);
      stream_.wait();
      if (r < 0) continue;
      fastest.wall = std::min(fastest.wall, lpsgd::now_seconds() - before);
      fastest.cpu = std::min(fastest.cpu, lpsgd::cpu_seconds(lpsgd::CpuTime::process) - cpu_before);
    }
    return fastest;
  }

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  int repeat_;
  memory::data_type type_;
  bool layers_;
};

struct Arguments {
  std::string network;
  std::int64_t batch = 128, frames = 0;
  int repeat = 3;
  memory::data_type type = memory::data_type::f32;
  bool layers = false;
  std::vector<std::string> overrides;
};

void declare(CLI::App& app, Arguments& a) {
  app.add_option("NETWORK", a.network, "a network file")->required();
  app.add_option("--batch", a.batch)->check(CLI::Range(1, 1 << 30));
  app.add_option("--frames", a.frames)->check(CLI::Range(0, 1 << 30));
  app.add_option("--repeat", a.repeat)->check(CLI::Range(1, 1 << 30));
  app.add_flag_callback("--bf16", [&] { a.type = memory::data_type::bf16; });
  app.add_flag("--layers", a.layers);
  app.add_option("--set", a.overrides, "a.b=value")->allow_extra_args(false);
}

void run(const Arguments& a) {
  lpsgd::config::Value tree = lpsgd::config::parse_file(a.network);
  for (const std::string& o : a.overrides) lpsgd::config::apply_override(tree, o);
  const lpsgd::Graph graph =
      lpsgd::read_graph(tree, a.frames > 0 ? std::optional<std::int64_t>(a.frames) : std::nullopt);
  FloorBackend backend(a.repeat, a.type, a.layers);
  float dummy = 0;
  for (const lpsgd::Node& node : graph.nodes) {
    if (!node.layer || node.layer->is_view()) continue;
    Binding b;
    b.batch = a.batch;
    b.shape = node.shape;
    for (const std::size_t i : node.inputs)
      b.inputs.push_back({graph.nodes[i].shape, lpsgd::DataType::f32, nullptr, i == 0 ? nullptr : &dummy});
    node.layer->make(backend, b);
  }
  const nlohmann::ordered_json out{{"name", "floor"},
                                   {"network", graph.name},
                                   {"batch", a.batch},
                                   {"seconds", backend.best.wall},
                                   {"cpu_seconds", backend.best.cpu},
                                   {"direct_seconds", backend.direct_only.wall},
                                   {"direct_cpu_seconds", backend.direct_only.cpu}};
  fmt::print("{}\n", out.dump());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("The time that a network's operations take by themselves in oneDNN.");
  Arguments arguments;
  declare(app, arguments);
  try {
    app.parse(argc, argv);
    run(arguments);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  } catch (const std::exception& e) {
    fmt::print(stderr, "floor_bench: {}\n", e.what());
    return 2;
  }
  return 0;
}
