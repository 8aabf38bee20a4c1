// The language of network files: what it expands to, and the texts of its errors.
#include "nn/network_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/error.h"
#include "core/file.h"
#include "nn/expression.h"
#include "nn/network_file.h"
#include "nn/shape.h"

namespace lpsgd {
namespace {

const std::string source = LPSGD_SOURCE_DIR;

NetworkSpec spec_of(const std::string& text) {
  return NetworkSpec(config::parse_text(text, "net.yaml"));
}

std::string error_of(const std::string& text) {
  try {
    const NetworkSpec spec = spec_of(text);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "no error";
}

/// The error of a network with these layers, the first on line 4.
std::string layers_error(const std::string& layers) {
  return error_of("input: [8, 8, 4]\nclasses: 4\nlayers:\n" + layers +
                  "  - flatten\n  - {dense: fc, units: 4}\n");
}

/// Parameters as published; multiply-adds counted by hand from the layers' sizes, biases and norms apart.
TEST(NetworkSpec, NetworksHaveTheLiteraturesSizes) {
  const auto check = [](const char* file, std::int64_t parameters, double gflops) {
    const NetworkSpec spec(config::parse_file(source + "/configs/networks/" + file + ".yaml"));
    EXPECT_EQ(spec.name(), file);
    EXPECT_EQ(spec.parameters(), parameters) << file;
    EXPECT_NEAR(static_cast<double>(spec.flops()) * 1e-9, gflops, 0.01 * gflops) << file;
  };
  check("alexnet", 62'378'344, 2 * 1.135);
  check("vgg19", 143'667'240, 2 * 19.632);
  check("resnet50", 25'557'032, 2 * 4.089);
  check("resnet152", 60'192'808, 2 * 11.514);
  check("bn_inception", 11'285'224, 2 * 2.025);
  check("resnet110", 1'730'714, 2 * 0.2535);
  check("densenet40_12", 1'019'722, 2 * 0.265);
  check("wideresnet28_12", 52'517'850, 2 * 7.545);
  check("lstm_an4", 13'637'764, 2 * 13.61e-3);  // 13,625,476 with one vector of biases a layer
  check("lstm_wikitext2", 53'450'278, 2 * 31.8e-3);
  check("logistic", 30'730, 2 * 30.72e-6);
}

/// As published, and with 5 classes.
TEST(NetworkSpec, NetworksThatClassifyHaveTheNumberOfClassesAsParameter) {
  const auto check = [](const char* file, std::int64_t classes, std::int64_t features, bool bias = true) {
    SCOPED_TRACE(file);
    config::Value tree = config::parse_file(source + "/configs/networks/" + file + ".yaml");
    const NetworkSpec published(tree);
    EXPECT_EQ(published.classes(), classes);
    config::apply_override(tree, "parameters.outputs=5");
    const NetworkSpec five(tree);
    EXPECT_EQ(five.classes(), 5);
    EXPECT_EQ(five.tensors().size(), published.tensors().size());
    EXPECT_EQ(published.parameters() - five.parameters(), (classes - 5) * (features + (bias ? 1 : 0)));
  };
  for (const char* const file : {"resnet8", "resnet20", "resnet20_gn", "resnet110"}) check(file, 10, 64);
  for (const char* const file : {"resnet50", "resnet152"}) check(file, 1000, 2048);
  for (const char* const file : {"alexnet", "vgg19"}) check(file, 1000, 4096);
  check("bn_inception", 1000, 1024);
  check("resnet9", 10, 256, false);
  check("densenet40_12", 10, 448);
  check("wideresnet28_12", 10, 768);
  check("lenet", 10, 500);
  check("logistic", 10, 3072);
  check("lstm_an4", 132, 512);
}

TEST(NetworkSpec, ClassesMayBeAnExpression) {
  const auto file = [](const std::string& classes) {
    return "input: [4]\nclasses: " + classes +
           "\nparameters: {half: 3}\nlayers: [{dense: d, units: 2 * $half}]\n";
  };
  EXPECT_EQ(spec_of(file("2 * $half")).classes(), 6);
  EXPECT_EQ(error_of(file("$half")),
            "net.yaml:4:10: layer 'd': the last layer gives (6), but the network has 3 classes");
  EXPECT_THAT(error_of(file("$hal")), testing::StartsWith("net.yaml:2:10: classes: "));
  EXPECT_EQ(error_of(file("$half - 3")), error_of(file("0")));
  EXPECT_EQ(error_of(file("0")), "net.yaml:2:10: classes: expected an integer from 1 to 16777216, got '0'");
  EXPECT_THAT(error_of(file("ten")),
              testing::StartsWith("net.yaml:2:10: classes: expected an integer from 1 to"));
}

TEST(NetworkSpec, StrideOfBottlenecksCanMove) {
  const auto tree = [](const std::vector<std::string>& overrides) {
    config::Value v = config::parse_file(source + "/configs/networks/resnet50.yaml");
    for (const std::string& o : overrides) config::apply_override(v, o);
    return NetworkSpec(v);
  };
  const auto shape = [](const NetworkSpec& spec, const std::string& layer) {
    for (const LayerInfo& l : spec.layers())
      if (l.name == layer) return l.shape;
    return std::vector<std::int64_t>{};
  };
  EXPECT_EQ(shape(tree({}), "layer2.0.conv1"), (std::vector<std::int64_t>{56, 56, 128}));
  const NetworkSpec original = tree({"parameters.stride_in=1"});
  EXPECT_EQ(shape(original, "layer2.0.conv1"), (std::vector<std::int64_t>{28, 28, 128}));
  EXPECT_EQ(original.parameters(), 25'557'032);
}

TEST(NetworkSpec, ResnetsHaveTheirParametersAndNames) {
  const NetworkSpec small(config::parse_file(source + "/configs/networks/resnet20.yaml"));
  EXPECT_EQ(small.name(), "resnet20");
  EXPECT_EQ(small.parameters(), 272'474);
  const NetworkSpec large(config::parse_file(source + "/configs/networks/resnet110.yaml"));
  EXPECT_EQ(large.parameters(), 1'730'714);
  EXPECT_EQ(large.name(), "resnet110");

  std::vector<std::string> names;
  for (const TensorInfo& t : small.tensors()) names.push_back(t.name);
  const std::vector<std::string> first{"conv1.weight", "bn1.weight", "bn1.bias", "layer1.0.conv1.weight",
                                       "layer1.0.bn1.weight"};
  EXPECT_EQ(std::vector<std::string>(names.begin(), names.begin() + 5), first);
  const auto at = std::find(names.begin(), names.end(), "layer2.0.bn2.bias");
  ASSERT_LT(at, names.end() - 4);
  EXPECT_EQ(*(at + 1), "layer2.0.downsample.0.weight");
  EXPECT_EQ(*(at + 2), "layer2.0.downsample.1.weight");
  EXPECT_EQ(*(at + 3), "layer2.0.downsample.1.bias");
  EXPECT_EQ(*(at + 4), "layer2.1.conv1.weight");
  EXPECT_EQ(names.back(), "fc.bias");

  std::int64_t end = 0;
  for (const TensorInfo& t : small.tensors()) {
    EXPECT_EQ(t.offset % 16, 0);
    EXPECT_GE(t.offset, end);
    end = t.offset + t.elements;
  }
}

TEST(NetworkSpec, ParametersOfAFileSwitchNormAndActivation) {
  config::Value tree = config::parse_file(source + "/configs/networks/resnet20.yaml");
  config::apply_override(tree, "parameters.norm=false");
  config::apply_override(tree, "parameters.activation=tanh");
  const NetworkSpec spec(tree);
  for (const LayerInfo& layer : spec.layers()) {
    EXPECT_NE(layer.kind, "batch_norm");
    EXPECT_NE(layer.kind, "relu");
  }
  EXPECT_EQ(spec.tensors()[1].name, "conv1.bias");
}

TEST(NetworkSpec, ShapesAndFlopsAreInferred) {
  const NetworkSpec spec = spec_of(
      "input: [9, 7, 4]\nclasses: 6\nlayers:\n"
      "  - {conv: c, filters: 8, kernel: [3, 2], stride: [2, 1], pad: [1, 0], groups: 2}\n"
      "  - {max_pool: p, kernel: 2, ceil_mode: true}\n  - average_pool\n  - flatten\n  - {dense: fc, units: "
      "6}\n");
  ASSERT_EQ(spec.layers().size(), 5u);
  EXPECT_EQ(spec.layers()[0].shape, (Shape{5, 6, 8}));
  EXPECT_EQ(spec.layers()[0].parameters, 8 * 2 * 3 * 2 + 8);
  EXPECT_EQ(spec.layers()[0].flops, 2 * 5 * 6 * 8 * 2 * 3 * 2 + 5 * 6 * 8);
  EXPECT_EQ(spec.layers()[1].shape, (Shape{3, 3, 8}));
  EXPECT_EQ(spec.layers()[2].shape, (Shape{1, 1, 8}));
  EXPECT_EQ(spec.layers()[4].shape, (Shape{6}));
  EXPECT_EQ(spec.tensors()[0].shape, (Shape{8, 2, 3, 2}));
}

TEST(NetworkSpec, MisfitsNameTheLayerAndTheLine) {
  EXPECT_EQ(error_of("input: [32, 32, 16]\nclasses: 2\n"
                     "blocks:\n  b:\n    layers:\n      - {conv: c, filters: 32, kernel: 1, stride: 2}\n"
                     "      - {add: add, input: [in, c]}\n"
                     "layers:\n  - {block: b, name: layer2, repeat: 2}\n"),
            "net.yaml:7:9: layer 'layer2.0.add': inputs (32, 32, 16) and (16, 16, 32) differ");
  EXPECT_EQ(layers_error("  - {conv: c, filters: 4, kernel: 9}\n"),
            "net.yaml:4:5: layer 'c': kernel 9x9 with pad 0x0 is larger than the input (8, 8, 4)");
  EXPECT_EQ(layers_error("  - {conv: c, filters: 4, kernel: 1, groups: 3}\n"),
            "net.yaml:4:5: layer 'c': 3 groups do not divide 4 input channels and 4 filters");
  EXPECT_EQ(layers_error("  - {dense: d, units: 4}\n"),
            "net.yaml:4:5: layer 'd': takes a flat input, got (8, 8, 4); put a flatten before it");
  EXPECT_EQ(layers_error("  - {max_pool: p, kernel: 3, pad: 2}\n"),
            "net.yaml:4:5: layer 'p': pad 2x2 is more than half the kernel 3x3");
  EXPECT_EQ(error_of("input: [4]\nclasses: 3\nlayers: [{dense: d, units: 2}]\n"),
            "net.yaml:3:10: layer 'd': the last layer gives (2), but the network has 3 classes");
  EXPECT_EQ(layers_error("  - {multiply: m, input: [in]}\n"),
            "net.yaml:4:5: layer 'm': takes two inputs, got 1");
  EXPECT_EQ(
      layers_error("  - {conv: c, filters: 2, kernel: 1}\n  - {multiply: m, input: [c, in]}\n"),
      "net.yaml:5:5: layer 'm': inputs (8, 8, 2) and (8, 8, 4) differ, and neither has one value for each "
      "channel of the other, as (1, 1, C) or (C)");
  EXPECT_EQ(layers_error("  - {relu: a}\n  - {relu: b, input: in}\n"),
            "net.yaml:4:5: layer 'a': nothing reads its output");
}

/// An error of the layers behind an input of 6 frames of 8 features.
std::string sequence_error(const std::string& layers) {
  return error_of("input: [6, 8]\nclasses: 3\nlayers: [" + layers + "]\n");
}

TEST(NetworkSpec, SequencesThatLayersDoNotAcceptAreRefused) {
  EXPECT_EQ(layers_error("  - {attention: a, heads: 2}\n"),
            "net.yaml:4:5: layer 'a': takes a sequence (frames, features), got (8, 8, 4)");
  EXPECT_EQ(
      sequence_error("{attention: a, heads: 2}"),
      "net.yaml:3:10: layer 'a': takes queries, keys and values side by side, got 8 features, which 3 does "
      "not divide");
  EXPECT_EQ(sequence_error("{attention: a, heads: 2, input: [in, in]}"),
            "net.yaml:3:10: layer 'a': takes one input, or queries, keys and values; got 2 inputs");
  EXPECT_EQ(sequence_error("{dense: d, units: 4}, {attention: a, heads: 2, input: [d, in, in]}"),
            "net.yaml:3:32: layer 'a': inputs (6, 4) and (6, 8) differ");
  EXPECT_EQ(sequence_error("{attention: a, heads: 3, input: [in, in, in]}"),
            "net.yaml:3:10: layer 'a': 3 heads do not divide 8 features");
  EXPECT_EQ(sequence_error("{position: p, frames: 5}"),
            "net.yaml:3:10: layer 'p': has vectors for 5 frames, and its input has 6");
  EXPECT_EQ(layers_error("  - {position: p, frames: 5}\n"),
            "net.yaml:4:5: layer 'p': takes a sequence (frames, features), got (8, 8, 4)");
  EXPECT_EQ(layers_error("  - to_sequence\n  - {select_frame: s, index: 64}\n"),
            "net.yaml:5:5: layer 's': selects frame 64, and its input has 64 frames");
  EXPECT_EQ(sequence_error("to_sequence"),
            "net.yaml:3:10: layer 'to_sequence': takes an image (H, W, C), got (6, 8)");
  EXPECT_EQ(error_of("input: [8, 8, 4]\nclasses: 3\nlayers: [to_sequence, {dense: d, units: 3}]\n"),
            "net.yaml:3:23: layer 'd': the last layer gives scores of 64 frames, but an image has one class; "
            "select_frame takes one frame, mean_frames their mean");
  for (const std::string layer : {"class_token", "select_frame", "mean_frames"})
    EXPECT_EQ(sequence_error("{dense: d, units: 3}, {" + layer + ": t}"),
              "net.yaml:3:32: layer 't': is for images: it changes the number of frames, and sequences have "
              "lengths of their own");
}

TEST(NetworkSpec, FixedPositions) {
  const NetworkSpec spec(
      config::parse_text("input: [6]\nclasses: 9\nlayers: [{embedding: e, vocabulary: 9, dimension: 4}, "
                         "{position: p, frames: 7, "
                         "trained: false}, {dense: f, units: 9}]",
                         "net.yaml"));
  EXPECT_EQ(spec.parameters(), 36 + 45);
  ASSERT_EQ(spec.frozen_tensors().size(), 1u);
  EXPECT_EQ(spec.frozen_tensors()[0].name, "p.weight");
  EXPECT_EQ(spec.frozen_parameters(), 28);
  EXPECT_TRUE(spec.layers()[1].frozen);
}

TEST(NetworkSpec, SharedWeights) {
  const auto text = [](const std::string& layers) {
    return "input: [6]\nclasses: 9\nlayers: [{embedding: e, vocabulary: 9, dimension: 4}, " + layers + "]\n";
  };
  const auto spec = [&](const std::string& last) {
    return NetworkSpec(config::parse_text(text("{dense: d, units: 4, bias: false}, " + last), "net.yaml"));
  };
  const NetworkSpec shared = spec("{dense: f, units: 9, weight_of: e}");
  EXPECT_EQ(spec("{dense: f, units: 9}").parameters(), 36 + 16 + 36 + 9);
  EXPECT_EQ(spec("{dense: f, units: 9, weight_of: none}").parameters(), 36 + 16 + 36 + 9);
  EXPECT_EQ(shared.parameters(), 36 + 16 + 9);
  ASSERT_EQ(shared.tensors().size(), 3u);
  EXPECT_EQ(shared.tensors()[0].name, "e.weight");
  EXPECT_EQ(shared.tensors()[2].name, "f.bias");
  EXPECT_EQ(shared.layers()[2].parameters, 9);
  EXPECT_EQ(shared.layers()[2].weight_of, "e");
  EXPECT_EQ(shared.layers()[1].weight_of, "");

  EXPECT_EQ(error_of(text("{dense: f, units: 9, weight_of: g}")),
            "net.yaml:3:87: f.weight_of: there is no layer 'g' here, did you mean 'e'?");
  EXPECT_EQ(
      error_of(text("{dense: f, units: 9, weight_of: e, init_deviation: 0.02}")),
      "net.yaml:3:55: layer 'f': init_deviation has no effect beside weight_of: give it to the embedding");
  EXPECT_EQ(error_of(text("{dense: f, units: 9, weight_of: in}")),
            "net.yaml:3:55: layer 'f': takes the weight of 'in', but only an embedding's can be shared");
  EXPECT_EQ(error_of(text("{dense: d, units: 4}, {dense: f, units: 9, weight_of: d}")),
            "net.yaml:3:77: layer 'f': takes the weight of 'd', but only an embedding's can be shared");
  EXPECT_EQ(error_of(text("{dense: d, units: 5}, {dense: f, units: 9, weight_of: e}")),
            "net.yaml:3:77: layer 'f': takes the weight of 'e', which is (9, 4), but needs (9, 5)");
  EXPECT_EQ(error_of(text("{dense: d, units: 9, weight_of: e}, {dense: f, units: 4, bias: false}, "
                          "{dense: g, units: 9, weight_of: e}")),
            "net.yaml:3:126: layer 'g': takes the weight of 'e', which another layer has taken already");
}

TEST(NetworkSpec, GroupsDivideTheChannels) {
  EXPECT_EQ(layers_error("  - {conv: c, filters: 12, kernel: 3}\n  - {group_norm: n, groups: 8}\n"),
            "net.yaml:5:5: layer 'n': 12 channels cannot be divided into 8 groups");
  EXPECT_EQ(layers_error("  - average_pool\n  - flatten\n  - {group_norm: n, groups: 4}\n"),
            "net.yaml:6:5: layer 'n': 4 groups of one value each: the output would not depend on the input");
  EXPECT_EQ(layers_error("  - to_sequence\n  - {group_norm: n, groups: 1}\n"),
            "net.yaml:5:5: layer 'n': group_norm takes images or features, not the sequence (64, 4): its "
            "statistics "
            "would count what lies behind a sequence's end");
}

TEST(NetworkSpec, MisspellingsAreSuggested) {
  EXPECT_EQ(
      layers_error("  - {cnov: c, filters: 4, kernel: 3}\n"),
      "net.yaml:4:6: layers[0]: unknown layer kind 'cnov', did you mean 'conv'?; known: block, conv, dense, "
      "lstm, embedding, batch_norm, layer_norm, group_norm, attention, position, class_token, select_frame, "
      "mean_frames, "
      "to_sequence, "
      "relu, sigmoid, tanh, relu6, hardsigmoid, hardswish, silu, gelu, dropout, "
      "lrn, scale, add, multiply, concat, max_pool, average_pool, flatten");
  EXPECT_EQ(layers_error("  - {conv: c, filter: 4, kernel: 3}\n"),
            "net.yaml:4:15: c.filter: unknown key, did you mean 'filters'?; allowed here: conv, input, if, "
            "filters, "
            "kernel, stride, pad, groups, bias, init_deviation, init_range, init_bias");
  EXPECT_EQ(layers_error("  - {scale: s}\n"),
            "net.yaml:4:5: s: the key 'factor' is missing; it must be given");
  EXPECT_EQ(layers_error("  - {scale: s, factor: 1.0e7}\n"),
            "net.yaml:4:24: s.factor: expected a number from -1000000 to 1000000, got '1.0e7'");
  EXPECT_EQ(layers_error("  - {relu: r, inptu: in}\n"),
            "net.yaml:4:15: r.inptu: unknown key, did you mean 'input'?; allowed here: relu, input, if");
  EXPECT_EQ(layers_error("  - {filters: 4, conv: c, kernel: 3}\n"),
            "net.yaml:4:6: layers[0]: an entry begins with its kind: write 'conv' first");
  EXPECT_EQ(layers_error("  - {conv: c1, filters: 4, kernel: 3}\n  - {relu: r, input: c2}\n"),
            "net.yaml:5:22: r.input: there is no layer 'c2' here, did you mean 'c1'?");
  EXPECT_EQ(layers_error("  - {relu: a, input: b}\n  - {relu: b}\n"),
            "net.yaml:4:22: a.input: 'b' comes later; a layer reads what is defined before it");
  EXPECT_EQ(layers_error("  - {relu: a, input: a}\n"), "net.yaml:4:22: a.input: no layer reads itself");
  EXPECT_EQ(layers_error("  - {relu: a}\n  - {tanh: a}\n"),
            "net.yaml:5:12: layers[1]: there are two layers 'a'");
  EXPECT_EQ(layers_error("  - {block: b}\n"),
            "net.yaml:4:13: layers[0]: there is no block 'b'; blocks: none");
}

TEST(NetworkSpec, ExpressionsAreChecked) {
  const auto with = [](const std::string& expression) {
    return error_of("input: [4]\nclasses: 4\nparameters: {n: 3, word: x}\nlayers:\n  - {dense: fc, units: " +
                    expression + "}\n");
  };
  EXPECT_EQ(with("2 * $n - 2"), "no error");
  EXPECT_EQ(with("($n + 1) % 5"), "no error");
  EXPECT_EQ(with("$m"),
            "net.yaml:5:24: layers[0]: in '$m': there is no parameter '$m', did you mean '$n'?; known here: "
            "$n, $word");
  EXPECT_EQ(with("$n / 2"), "net.yaml:5:24: layers[0]: in '$n / 2': 3 / 2 does not come out even");
  EXPECT_EQ(with("$n / 0"), "net.yaml:5:24: layers[0]: in '$n / 0': division by zero or overflow");
  EXPECT_EQ(with("$n + $word"), "net.yaml:5:24: layers[0]: in '$n + $word': 'x' is not an integer");
  EXPECT_EQ(with("$n * 9223372036854775807"),
            "net.yaml:5:24: layers[0]: in '$n * 9223372036854775807': overflows");
  EXPECT_EQ(with("$n +"), "net.yaml:5:24: layers[0]: in '$n +': it ends too soon");
  EXPECT_EQ(with("$n $n"), "net.yaml:5:24: layers[0]: in '$n $n': '$n' is not understood");
  EXPECT_EQ(with("$n + 0.5"), "net.yaml:5:24: layers[0]: in '$n + 0.5': '0.5' is not an integer");
  EXPECT_EQ(with("4 if $n == 3 else 0."),
            "net.yaml:5:24: layers[0]: in '4 if $n == 3 else 0.': '.' is not understood");
  EXPECT_EQ(with("4, init_deviation: 0.25 if $n == 3 else 0.5.1"),
            "net.yaml:5:43: layers[0]: in '0.25 if $n == 3 else 0.5.1': '.1' is not understood");
  // What is not needed is read, but not computed.
  EXPECT_EQ(with("$n / 2 if $n % 2 == 0 else 4"), "no error");
  EXPECT_EQ(with("4 if $n > 2 else $n / 0"), "no error");
  EXPECT_EQ(with("(4 / 0 if $n == 0 else 4) if $n != 0 else 1"), "no error");
  EXPECT_EQ(with("4 if $n == 3 or 1 / ($n - 3) == 2 else 5"), "no error");
  EXPECT_EQ(with("5 if $n != 3 and 1 / ($n - 3) == 2 else 4"), "no error");
  EXPECT_EQ(with("5 if $n != 3 and $word + 1 == 2 else 4"), "no error");
  const std::string at = "net.yaml:5:24: layers[0]: in ";
  EXPECT_EQ(with("$n / 2 if $n == 3 else 4"),
            at + "'$n / 2 if $n == 3 else 4': 3 / 2 does not come out even");
  EXPECT_EQ(with("4 if $n == 0 else $n / 0"),
            at + "'4 if $n == 0 else $n / 0': division by zero or overflow");
  EXPECT_EQ(with("4 if $n == 3 and 1 / ($n - 3) == 2 else 5"),
            at + "'4 if $n == 3 and 1 / ($n - 3) == 2 else 5': division by zero or overflow");
  EXPECT_EQ(with("4 if true or $n + ) else 5"),
            at + "'4 if true or $n + ) else 5': ') else 5' is not understood");
  EXPECT_EQ(with("$m if $n == 0 else 4"),
            at + "'$m if $n == 0 else 4': there is no parameter '$m', did you mean '$n'?; known here: "
                 "$n, $word");
  EXPECT_EQ(with("-$n"), "net.yaml:5:24: fc.units: expected an integer from 1 to 16777216, got '-3'");
}

TEST(NetworkSpec, ExpressionsChooseDecimalNumbers) {
  const auto chosen = [](const std::string& n) {
    ParameterScope scope;
    scope.set("n", config::Value::plain(n));
    return evaluate("0.25 if $n == 3 else 0.5 if $n == 1.5 else $n", scope, {}, "test");
  };
  EXPECT_EQ(chosen("3"), "0.25");
  EXPECT_EQ(chosen("1.5"), "0.5");
  EXPECT_EQ(chosen("0.75"), "0.75");
  EXPECT_EQ(chosen("3.0"), "0.25") << "numbers are compared, not their texts";
  EXPECT_EQ(chosen("15e-1"), "0.5");
}

TEST(NetworkSpec, ExpressionsReadNumbersAsYamlHasThem) {
  const auto result = [](const std::string& expression) {
    ParameterScope scope;
    for (const auto& [name, value] : {std::pair{"p", "0.5"},
                                      {"z", "0.0"},
                                      {"s", "1e-3"},
                                      {"n", "3"},
                                      {"m", "-2.5"},
                                      {"flag", "TRUE"},
                                      {"word", "x"}})
      scope.set(name, config::Value::plain(value));
    return evaluate(expression, scope, {}, "test");
  };
  for (const char* expression :
       {"$p == 0.50", "$z == 0", "$s == 0.001", "$n == 3.0", "$flag", "$flag == True", "not FALSE or $n == 0",
        "-$p == -0.5", "$m == -2.5", "-$m == 25e-1", "$word == x", "$word != 0.5", "$n - 1 == 2", "$p != 5"})
    EXPECT_EQ(result(expression), "true") << expression;
  EXPECT_EQ(result("-0.5 if $n == 3 else 1"), "-0.5");
  EXPECT_EQ(result("1.5e-3 if $n == 3 else 1"), "1.5e-3");
  EXPECT_EQ(result("2E+4 if $n == 3 else 1"), "2E+4");
  EXPECT_EQ(result("9223372036854775807 == 9223372036854775806"), "false") << "integers are compared exactly";
  for (const char* expression :
       {"$p + 1", "$p < 1", "1e-", "1. if $flag else 2", ".5 if $flag else 2", "1e-3 * $n", "-$word"})
    EXPECT_THROW(result(expression), ConfigError) << expression;
}

TEST(NetworkSpec, BlocksAreChecked) {
  const auto with = [](const std::string& use, const std::string& body) {
    return error_of(
        "input: [4]\nclasses: 4\nblocks:\n  b:\n    parameters: {width: null, act: relu}\n    layers: " +
        body + "\n  c: {layers: [{block: b, with: {width: 4}}, {block: c}]}\nlayers:\n  - " + use + "\n");
  };
  const std::string body = "[{dense: d, units: $width}, $act]";
  EXPECT_EQ(with("{block: b, with: {width: 4}, repeat: 3}", body), "no error");
  EXPECT_EQ(with("{block: b, with: {width: 7}, first: {width: 4}}", body), "no error");
  EXPECT_EQ(with("{block: b}", body), "net.yaml:5:18: b: the parameter 'width' must be given");
  EXPECT_EQ(
      with("{block: b, with: {widht: 4}}", body),
      "net.yaml:9:23: b: the block has no parameter 'widht', did you mean 'width'?; it has: width, act");
  // Also where it is switched off, or nothing uses it.
  EXPECT_EQ(
      with("{block: b, if: false, with: {widht: 4}}", body),
      "net.yaml:9:34: b: the block has no parameter 'widht', did you mean 'width'?; it has: width, act");
  EXPECT_EQ(
      error_of("input: [4]\nclasses: 4\nblocks: {b: {layres: [relu]}}\nlayers: [{dense: d, units: 4}]\n"),
      "net.yaml:3:14: blocks.b.layres: unknown key, did you mean 'layers'?; allowed here: parameters, "
      "layers");
  EXPECT_EQ(with("{block: c}", body), "net.yaml:7:54: blocks.c.layers[1]: the block 'c' contains itself");
  EXPECT_EQ(with("{block: b, with: {width: 4}, repeat: 1000000000}", body),
            "net.yaml:9:42: b.repeat: expected an integer from 1 to 10000, got '1000000000'");
  EXPECT_EQ(with("{block: b, with: {width: 4}, repeat: 10000}", "[{dense: d, units: $width}, $act, tanh]"),
            "net.yaml:6:47: b.6666.tanh: the network has more than 20000 layers");
}

TEST(NetworkSpec, SequencesHaveNoBatchNorm) {
  EXPECT_EQ(error_of("input: [5, 4]\nclasses: 4\nlayers: [{batch_norm: b}]\n"),
            "net.yaml:3:10: layer 'b': batch_norm takes images or features, not the sequence (5, 4): its "
            "statistics would count what lies behind a sequence's end");
}

TEST(NetworkSpec, AbsurdSizesAreRefused) {
  EXPECT_NE(layers_error("  - {conv: c, filters: 1000000, kernel: 1, pad: 1000000}\n").find("is too large"),
            std::string::npos);
  EXPECT_NE(
      error_of("input: [1000000, 1000000, 3]\nclasses: 2\nlayers: [flatten]").find("input: is too large"),
      std::string::npos);
  EXPECT_NE(error_of("input: [1000000]\nclasses: 2\nlayers: [{dense: d, units: 16000000}]").find("too large"),
            std::string::npos);
  EXPECT_NE(error_of("layers: []").find("input"), std::string::npos);
  EXPECT_NE(error_of("input: [4]\nclasses: 4\nlayers: []").find("expected a list of layers"),
            std::string::npos);
}

TEST(NetworkSpec, DocumentationListsEveryOption) {
  const std::string text = read_file(source + "/docs/networks.md");
  const std::string begin = "<!-- generated: begin -->\n", end = "<!-- generated: end -->";
  const std::size_t from = text.find(begin), to = text.find(end);
  ASSERT_NE(from, std::string::npos);
  ASSERT_NE(to, std::string::npos);
  const std::string reference = network_reference();
  EXPECT_EQ(text.substr(from + begin.size(), to - from - begin.size()), reference)
      << "docs/networks.md is out of date; between the marks it should hold:\n"
      << reference;
}

}  // namespace
}  // namespace lpsgd
