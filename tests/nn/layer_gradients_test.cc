// Backward of every layer against central differences of the loss.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>

#include "core/error.h"
#include "tests/nn/layer_fixture.h"

namespace lpsgd {
namespace {

/// Compares backward with central differences, in the direction of the gradient of each tensor (so that
/// float32's noise is small beside the change) and along a few single elements. `scale` shortens the steps.
void check_gradients(const std::string& text, std::int64_t batch = 3, double scale = 1,
                     const std::vector<std::int32_t>& lengths = {}) {
  SCOPED_TRACE(text);
  LayerFixture f(text, batch);
  f.lengths = lengths;
  f.loss();
  std::vector<std::size_t> announced;
  f.network.backward([&](std::size_t t) { announced.push_back(t); });
  EXPECT_EQ(announced, f.network.announce_order());
  const std::vector<float> gradients(f.network.gradients().begin(), f.network.gradients().end());
  const std::vector<float> weights(f.network.parameters().begin(), f.network.parameters().end());
  for (const TensorInfo& t : f.network.tensors()) {
    const std::size_t begin = static_cast<std::size_t>(t.offset),
                      count = static_cast<std::size_t>(t.elements);
    const auto slope = [&](const std::function<double(std::size_t)>& direction, double step) {
      double value[2];
      for (int side = 0; side < 2; ++side) {
        for (std::size_t i = 0; i < count; ++i)
          f.network.parameters()[begin + i] = static_cast<float>(static_cast<double>(weights[begin + i]) +
                                                                 (side ? step : -step) * direction(i));
        value[side] = f.loss();
      }
      for (std::size_t i = 0; i < count; ++i) f.network.parameters()[begin + i] = weights[begin + i];
      return (value[1] - value[0]) / (2 * step);
    };
    double norm = 0;
    for (std::size_t i = 0; i < count; ++i) norm += std::pow(static_cast<double>(gradients[begin + i]), 2);
    norm = std::sqrt(norm);
    if (norm > 1e-6) {  // a bias before batch norm has no gradient
      const double along = slope(
          [&](std::size_t i) { return static_cast<double>(gradients[begin + i]) / norm; }, scale * 5e-3);
      EXPECT_NEAR(along, norm, 2e-3 * norm + 2e-4) << t.name;
    }
    for (std::size_t probe = 0; probe < count; probe += count / 5 + 1)
      EXPECT_NEAR(slope([&](std::size_t i) { return i == probe ? 1.0 : 0.0; }, scale * 1e-2),
                  static_cast<double>(gradients[begin + probe]), 2e-3 * norm + 5e-4)
          << t.name << " element " << probe;
  }
}

std::string network(const std::string& input, const std::string& layers) {
  return "input: " + input +
         "\nclasses: 3\nlayers:\n  - {conv: first, filters: 4, kernel: 1}\n  - {tanh: smooth}\n" + layers +
         "  - flatten\n  - {dense: fc, units: 3}\n";
}

TEST(Gradients, Convolution) {
  check_gradients(network("[5, 6, 3]", "  - {conv: c, filters: 6, kernel: 3, pad: 1}\n"));
  check_gradients(
      network("[7, 6, 3]", "  - {conv: c, filters: 6, kernel: [3, 2], stride: [2, 1], pad: [1, 0]}\n"));
  check_gradients(
      network("[6, 6, 2]", "  - {conv: c, filters: 6, kernel: 3, stride: 2, groups: 2, bias: false}\n"));
  check_gradients(network("[8, 8, 2]", "  - {conv: c, filters: 4, kernel: 3, stride: 4}\n"));
}

TEST(Gradients, BatchNorm) {
  check_gradients(network("[4, 5, 3]", "  - {batch_norm: b}\n"), 4);
  check_gradients(network("[4, 4, 3]", "  - {batch_norm: b}\n  - {tanh: t}\n"), 4);
  check_gradients(network("[3, 3, 3]", "  - {batch_norm: b, eps: 0.5}\n  - {add: s, input: [b, smooth]}\n"),
                  4);
  check_gradients(
      "input: [6]\nclasses: 3\nlayers: [{dense: d, units: 5}, batch_norm, tanh, {dense: fc, units: 3}]", 8);
}

TEST(Gradients, Pooling) {
  check_gradients(network("[6, 6, 3]", "  - {average_pool: p, kernel: 3, stride: 2, pad: 1}\n"));
  check_gradients(
      network("[6, 7, 3]",
              "  - {average_pool: p, kernel: 3, stride: 2, pad: 1, ceil_mode: true, count_pad: false}\n"));
  check_gradients(network("[6, 6, 3]", "  - average_pool\n"));
  // Steps so short that the position of no window's maximum changes.
  check_gradients(network("[6, 6, 3]", "  - {max_pool: p, kernel: 2}\n"), 3, 0.05);
  check_gradients(network("[6, 7, 3]", "  - {max_pool: p, kernel: 3, stride: 2, pad: 1, ceil_mode: true}\n"),
                  3, 0.05);
}

TEST(Gradients, LocalResponseNormalisation) {
  // Windows wider than the channels, even windows, exponents with and without a shortcut.
  for (const std::string options : {"alpha: 0.5", "size: 4, alpha: 2, beta: 0.75",
                                    "size: 9, alpha: 3, beta: 1.5", "size: 1, alpha: 1, k: 2"})
    check_gradients(
        network("[4, 3, 3]", "  - {conv: c, filters: 7, kernel: 1}\n  - {lrn: l, " + options + "}\n"));
  check_gradients(network("[3, 3, 3]", "  - {conv: c, filters: 37, kernel: 1}\n  - {lrn: l, alpha: 4}\n"));
}

TEST(Gradients, Scale) {
  check_gradients(network("[4, 3, 3]", "  - {scale: c, factor: 0.3}\n"));
  check_gradients(network("[4, 3, 3]", "  - {scale: c, factor: -2}\n  - {add: s, input: [c, c, smooth]}\n"));
  check_gradients("input: [7]\nclasses: 3\nlayers: [{dense: a, units: 3}, {scale: c, factor: 0.125}]", 5);
}

TEST(Gradients, ActivationsThatReadTheirInput) {
  for (const std::string kind : {"silu", "gelu", "hardswish", "hardsigmoid"}) {
    SCOPED_TRACE(kind);
    // Several gradients, of which one is written over; and an input that another layer reads, too.
    check_gradients(network("[4, 3, 3]", "  - {conv: c, filters: 5, kernel: 1}\n  - {" + kind + ": a}\n"));
    check_gradients(network("[4, 3, 3]", "  - {conv: c, filters: 5, kernel: 1}\n  - {" + kind +
                                             ": a}\n  - {add: s, input: [a, a, c]}\n"));
    check_gradients("input: [7]\nclasses: 3\nlayers: [{dense: a, units: 3}, " + kind + "]", 5);
  }
}

TEST(Gradients, Products) {
  check_gradients(
      network("[4, 3, 3]", "  - {conv: c, filters: 4, kernel: 1}\n  - {multiply: m, input: [c, smooth]}\n"));
  check_gradients(network("[4, 3, 3]", "  - {multiply: m, input: [smooth, smooth]}\n"));
  const std::string gate = "  - {average_pool: p}\n  - {conv: g, filters: 4, kernel: 1}\n  - {sigmoid: s}\n";
  check_gradients(network("[4, 3, 3]", gate + "  - {multiply: m, input: [s, smooth]}\n"));
  check_gradients(network("[4, 3, 3]", gate + "  - {multiply: m, input: [smooth, s]}\n"
                                              "  - {add: t, input: [m, m, smooth]}\n"));
  const std::string flat = "  - {average_pool: p}\n  - flatten\n  - {dense: g, units: 4}\n  - {sigmoid: s}\n";
  check_gradients(
      "input: [4, 3, 3]\nclasses: 3\nlayers:\n  - {conv: first, filters: 4, kernel: 1}\n  - {tanh: "
      "smooth}\n" +
      flat +
      "  - {multiply: m, input: [smooth, s]}\n  - {flatten: f}\n  - {dense: fc, "
      "units: 3}\n");
  // A gate without gradient, and an image without one.
  check_gradients(
      "input: [4]\nclasses: 3\nlayers: [{dense: a, units: 4}, {multiply: m, input: [a, in]}, {dense: b, "
      "units: 3}]",
      5);
}

TEST(Gradients, Dropout) {
  check_gradients(network("[4, 3, 3]", "  - {dropout: d, probability: 0.3}\n"));
  check_gradients(network("[4, 3, 3]", "  - {dropout: d}\n  - {add: s, input: [d, d, smooth]}\n"));
}

TEST(Gradients, Concatenation) {
  check_gradients(
      network("[4, 3, 3]",
              "  - {conv: a, filters: 5, kernel: 1}\n  - {conv: b, input: smooth, filters: 2, kernel: "
              "1}\n  - {concat: c, input: [a, smooth, b]}\n  - {conv: d, filters: 3, kernel: 1}\n"
              "  - {concat: e, input: [c, d, c]}\n"));
  check_gradients(
      "input: [7]\nclasses: 3\nlayers: [{dense: a, units: 5}, tanh, {concat: c, input: [tanh, in]}, {dense: "
      "b, "
      "units: 3}]",
      5);
}

TEST(Gradients, DenseOnEachFrame) {
  check_gradients("input: [5, 4]\nclasses: 3\nlayers: [{dense: a, units: 5}, sigmoid, {dense: b, units: 3}]",
                  4);
}

TEST(Gradients, Lstm) {
  const auto text = [](const std::string& layers, int frames) {
    return "input: [" + std::to_string(frames) + ", 4]\nclasses: 3\nlayers: [" + layers +
           ", {dense: fc, units: 3}]";
  };
  check_gradients(text("{lstm: a, cell: 5}", 4), 3);
  check_gradients(text("{lstm: a, cell: 5, projection: 3}, {lstm: b, cell: 18}", 4), 3);
  check_gradients(text("{lstm: a, cell: 3, bias: false}", 1), 3);
  check_gradients(text("{lstm: a, cell: 6, projection: 2, bias: false}, {lstm: b, cell: 5}", 5), 4, 1,
                  {2, 5, 1, 4});
}

TEST(Gradients, Embedding) {
  const std::string text =
      "input: [5]\nclasses: 3\nlayers: [{embedding: e, vocabulary: 6, dimension: 7}, {lstm: l, cell: 4}, "
      "{dense: fc, "
      "units: 3}]";
  LayerFixture f(text, 2);
  for (std::size_t i = 0; i < f.inputs.size(); ++i)
    f.inputs[i] = static_cast<float>(i * i % 5);  // 5 is not used
  f.lengths = {5, 3};
  f.loss();
  f.network.backward({});
  const std::vector<float> gradients(f.network.gradients().begin(), f.network.gradients().end());
  for (std::size_t i = 0; i < 42; ++i) {
    const float w = f.network.parameters()[i];
    double value[2];
    for (const int side : {0, 1}) {
      f.network.parameters()[i] = w + (side ? 1e-2f : -1e-2f);
      value[side] = f.loss();
    }
    f.network.parameters()[i] = w;
    EXPECT_NEAR((value[1] - value[0]) / 2e-2, static_cast<double>(gradients[i]), 1e-4) << i;
    if (i >= 35) {
      EXPECT_EQ(gradients[i], 0.0f);
    }
  }
  f.inputs[3] = 6;
  EXPECT_THROW(f.loss(), Error);
}

TEST(Gradients, LayerNorm) {
  check_gradients(network("[4, 3, 3]", "  - {conv: c, filters: 5, kernel: 1}\n  - {layer_norm: n}\n"));
  check_gradients(
      network("[4, 3, 3]", "  - {layer_norm: n, eps: 0.1}\n  - {add: s, input: [n, smooth, smooth]}\n"));
  check_gradients(
      "input: [5, 4]\nclasses: 3\nlayers: [{dense: a, units: 37}, layer_norm, {dense: b, units: 3}]", 4);
  check_gradients("input: [7]\nclasses: 3\nlayers: [{layer_norm: a}, {dense: b, units: 3}]", 5);
}

TEST(Gradients, GroupNorm) {
  check_gradients(
      network("[4, 3, 3]", "  - {conv: c, filters: 6, kernel: 1}\n  - {group_norm: n, groups: 2}\n"));
  check_gradients(network("[4, 3, 3]",
                          "  - {group_norm: n, groups: 4, eps: 0.1}\n  - {add: s, input: [n, smooth, "
                          "smooth]}\n"));
  check_gradients(
      network("[4, 4, 3]", "  - {conv: c, filters: 16, kernel: 3}\n  - {group_norm: n, groups: 1}\n"));
  check_gradients(
      "input: [5]\nclasses: 3\nlayers: [{dense: a, units: 12}, {group_norm: n, groups: 4}, {dense: b, "
      "units: 3}]",
      4);
}

TEST(Gradients, Attention) {
  const auto check = [](const std::string& attention, int frames, const std::vector<std::int32_t>& lengths) {
    check_gradients("input: [" + std::to_string(frames) +
                        ", 4]\nclasses: 3\nlayers:\n  - {dense: q, units: 12, init_deviation: 1}\n"
                        "  - {dense: k, input: in, units: 12, init_deviation: 1}\n"
                        "  - {dense: v, input: in, units: 12}\n" +
                        attention + "  - {dense: fc, units: 3}\n",
                    3, 0.3, lengths);
  };
  for (const std::string options :
       {"heads: 1", "heads: 3", "heads: 2, causal: true", "heads: 3, causal: true, dropout: 0.3"}) {
    check("  - {attention: a, input: [q, k, v], " + options + "}\n", 6, {});
    check("  - {concat: c, input: [q, k, v]}\n  - {attention: a, " + options + "}\n", 5, {2, 5, 0});
    check_gradients(
        "input: [4, 4]\nclasses: 3\nlayers: [{dense: q, units: 12, init_deviation: 1}, {attention: a, input: "
        "[q, q, q], " +
            options + "}, {dense: fc, units: 3}]",
        3, 0.3);
  }
}

/// They hand on the gradient of their output, of several readers too.
TEST(Gradients, FixedPositions) {
  for (const std::string more : {"{dense: b, units: 6, input: p}, {add: s, input: [p, b]}, ",
                                 "{add: s, input: [p, p, p, p, p, p, p, p, p, p]}, "})
    check_gradients(
        "input: [5, 4]\nclasses: 3\nlayers: [{dense: a, units: 6}, {position: p, frames: 5, trained: "
        "false}, " +
            more + "tanh, {dense: fc, units: 3}]",
        3);
}

/// Frames of images: positions, a class token, and one frame alone.
TEST(Gradients, Frames) {
  const auto check = [](const std::string& layers) {
    check_gradients(
        "input: [4, 3, 3]\nclasses: 3\nlayers:\n  - {conv: c, filters: 6, kernel: 1}\n  - to_sequence\n" +
            layers + "  - {dense: fc, units: 3}\n",
        4);
  };
  check(
      "  - {class_token: t, init_deviation: 1}\n  - {position: p, frames: 15}\n  - tanh\n"
      "  - {select_frame: s}\n");
  check("  - {position: p, frames: 12}\n  - tanh\n  - {mean_frames: m}\n");
  check(
      "  - {position: p, frames: 12}\n  - {class_token: t}\n  - {attention: a, heads: 2}\n  - {select_frame: "
      "s, index: 3}\n");
  check(
      "  - {position: p, frames: 12}\n  - {select_frame: s, index: 11}\n  - {select_frame: r, input: p, "
      "index: 2}\n"
      "  - {add: b, input: [s, r]}\n");
}

TEST(Gradients, SharedTensorsAddUp) {
  check_gradients(network("[4, 4, 3]",
                          "  - {conv: a, filters: 4, kernel: 1}\n  - {conv: b, input: smooth, filters: 4, "
                          "kernel: 1}\n  - {add: s, input: [a, b, smooth]}\n"));
  check_gradients(network("[4, 4, 3]",
                          "  - {average_pool: p, kernel: 2}\n  - {conv: a, filters: 4, kernel: 1}\n"
                          "  - {conv: b, input: p, filters: 4, kernel: 1}\n  - {add: s, input: [a, b]}\n"));
  check_gradients(network("[4, 4, 3]", "  - {add: s, input: [smooth, smooth]}\n"));
  check_gradients(network("[4, 4, 3]",
                          "  - {batch_norm: b}\n  - {conv: a, filters: 4, kernel: 1}\n  - {add: s, input: "
                          "[a, b]}\n"),
                  4);
}

TEST(Gradients, DenseAndActivations) {
  check_gradients("input: [7]\nclasses: 3\nlayers: [{dense: a, units: 5}, sigmoid, {dense: b, units: 3}]", 5);
  check_gradients(
      "input: [7]\nclasses: 3\nlayers: [{dense: a, units: 5, bias: false}, tanh, {dense: b, units: 3}]", 5);
}

/// ReLU has a kink, so instead of differences: a network whose norms, sums and ReLUs are fused agrees with an
/// equal one in which a second reader of each prevents that.
TEST(Gradients, FusedReluEqualsUnfused) {
  const auto text = [](bool fused, const std::string& norm) {
    const std::string twice = fused ? "" : "  - {relu: r0b, input: n0}\n";
    const std::string again = fused ? "" : "  - {relu: r1b, input: s}\n";
    return "input: [6, 6, 3]\nclasses: 3\nlayers:\n  - {conv: first, filters: 16, kernel: 3, pad: 1}\n  - {" +
           norm + ": n0}\n  - {relu: r0}\n" + twice +
           "  - {conv: c1, input: r0, filters: 16, kernel: 3, pad: 1}\n  - {" + norm +
           ": n1}\n  - {add: s, input: [n1, " + (fused ? "r0" : "r0b") + "]}\n  - {relu: r1}\n" + again +
           "  - {add: m, input: [r1, " + (fused ? "r1" : "r1b") +
           "]}\n  - average_pool\n  - flatten\n  - {dense: fc, units: 3}\n";
  };
  // Where a layer behind the ReLU does not read it again in backward.
  const auto pooled = [](bool fused, const std::string& norm, const std::string& behind) {
    return "input: [6, 6, 3]\nclasses: 3\nlayers:\n  - {conv: first, filters: 16, kernel: 3, pad: 1}\n  - {" +
           norm + "}\n" + (fused ? "" : "  - {scale: apart, factor: 1}\n") + "  - {relu: r}\n" + behind +
           "  - flatten\n  - {dense: fc, units: 3}\n";
  };
  const std::string groups = "group_norm: n0, groups: 4";
  std::vector<std::array<std::string, 3>> cases;
  for (const std::string& norm : {std::string("batch_norm: n0"), groups})
    for (const char* behind : {"", "  - {max_pool: p, kernel: 2}\n", "  - {average_pool: p, kernel: 2}\n",
                               "  - {concat: p, input: [r, first]}\n", "  - {add: p, input: [r, r]}\n"})
      cases.push_back({norm + behind, pooled(true, norm, behind), pooled(false, norm, behind)});
  for (const std::string norm : {"batch_norm", "tanh"})
    cases.push_back({norm, text(true, norm), text(false, norm)});
  for (const auto& [norm, of_fused, of_separate] : cases) {
    LayerFixture fused(of_fused, 4), separate(of_separate, 4);
    EXPECT_NEAR(fused.loss(), separate.loss(), 1e-6) << norm;
    fused.network.backward({});
    separate.network.backward({});
    for (std::size_t i = 0; i < fused.network.gradients().size(); ++i)
      EXPECT_NEAR(fused.network.gradients()[i], separate.network.gradients()[i], 1e-6) << norm << " at " << i;
  }
}

/// Batch norms that hand their input's gradient to a convolution row by row agree with equal ones that a
/// pooling window of one pixel separates from it. Outputs have 4 MiB, which the parts do not divide.
TEST(Gradients, RowwiseBackwardEqualsSeparate) {
  const auto text = [](bool rowwise, bool shortcut) {
    const auto conv = [&](const std::string& name, const std::string& from) {
      return "  - {conv: " + name + ", input: " + from + ", filters: 64, kernel: 1, bias: false}\n" +
             (rowwise ? "" : "  - {max_pool: p" + name + ", kernel: 1}\n") + "  - {batch_norm: b" + name +
             "}\n";
    };
    return "input: [67, 83, 8]\nclasses: 3\nlayers:\n  - {conv: first, filters: 64, kernel: 3, pad: 1}\n" +
           conv("c", "first") + "  - {relu: r0}\n" + conv("d", "r0") +
           (shortcut ? "  - {add: s, input: [bd, r0]}\n" : "") +
           "  - {relu: r1}\n  - average_pool\n  - flatten\n  - {dense: fc, units: 3}\n";
  };
  for (const bool shortcut : {false, true})
    for (const int threads : {1, 3}) {
      LayerFixture rowwise(text(true, shortcut), 3, 5, threads),
          separate(text(false, shortcut), 3, 5, threads);
      for (int step = 0; step < 2; ++step) {  // the second must not use the sums of the first
        EXPECT_NEAR(rowwise.loss(), separate.loss(), 1e-6);
        rowwise.network.backward({});
        separate.network.backward({});
        for (const OperationTime& t : rowwise.network.take_times()) {
          const bool convolution = t.name == "c" || t.name == "d";
          EXPECT_LT(convolution ? t.backward : 0, 1e-4) << "not row by row";
        }
        double size = 0;
        for (const float g : separate.network.gradients())
          size = std::max(size, std::abs(static_cast<double>(g)));
        for (std::size_t i = 0; i < rowwise.network.gradients().size(); ++i)
          ASSERT_NEAR(rowwise.network.gradients()[i], separate.network.gradients()[i], 2e-5 * size)
              << "shortcut " << shortcut << ", " << threads << " threads, at " << i;
        rowwise.network.forward_eval({rowwise.inputs, rowwise.labels}, 3);
        rowwise.network.take_metrics();
      }
      for (std::size_t b = 0; b < separate.network.buffers().size(); ++b)
        for (std::size_t i = 0; i < separate.network.buffers()[b].values.size(); ++i)
          ASSERT_NEAR(rowwise.network.buffers()[b].values[i], separate.network.buffers()[b].values[i], 1e-5);
    }
}

}  // namespace
}  // namespace lpsgd
