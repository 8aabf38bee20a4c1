// Codecs as configured: defaults, round trips, the texts of errors.
#include <gtest/gtest.h>

#include "core/error.h"
#include "quant/codec.h"

namespace lpsgd {
namespace {

CodecSpec parse(const std::string& text) {
  return parse_codec(config::parse_text(text, "a.yaml"), "codec");
}

std::string error_of(const std::string& text) {
  try {
    parse(text);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "no error";
}

TEST(CodecSpec, Defaults) {
  EXPECT_EQ(to_text(parse("none")), "{kind: none}");
  EXPECT_EQ(to_text(parse("{kind: fp16}")), "{kind: fp16}");
  EXPECT_EQ(to_text(parse("{kind: onebit}")), "{kind: onebit, bucket: 64, error_feedback: true}");
  EXPECT_EQ(to_text(parse("{kind: qsgd}")),
            "{kind: qsgd, bits: 4, norm: max, levels: sign_magnitude, bucket: 512, error_feedback: false}");
  EXPECT_EQ(parse("{kind: qsgd, bits: 2}").bucket, 128);
  EXPECT_EQ(parse("{kind: qsgd, bits: 8}").bucket, 512);
  EXPECT_EQ(parse("{kind: qsgd, bits: 16}").bucket, 8192);
  EXPECT_EQ(parse("{bucket: 96, bits: 16, kind: qsgd}").bucket, 96);
  EXPECT_EQ(to_text(parse("sign")), "{kind: sign, majority: false, bucket: tensor, error_feedback: true}");
  EXPECT_EQ(to_text(parse("{kind: sign, majority: true}")),
            "{kind: sign, majority: true, bucket: tensor, error_feedback: false}");
  EXPECT_EQ(to_text(parse("topk")), "{kind: topk, density: 0.01, bucket: 4096, error_feedback: true}");
  EXPECT_EQ(to_text(parse("dynamic8")),
            "{kind: dynamic8, type: dynamic_tree, bucket: 4096, error_feedback: false}");
  EXPECT_EQ(to_text(parse("mx")),
            "{kind: mx, element: e2m1, rounding: stochastic, bucket: 512, error_feedback: false}");
}

TEST(CodecSpec, RoundTrips) {
  for (const char* text :
       {"none", "fp16", "bf16", "{kind: onebit, bucket: column, error_feedback: false}",
        "{kind: onebit, bucket: tensor}", "{kind: qsgd, bits: 16, norm: l2, bucket: tensor}",
        "{kind: qsgd, bits: 2, bucket: 4096, error_feedback: true}",
        "{kind: qsgd, levels: interval, bits: 16}", "{kind: qsgd, levels: exponential}",
        "{kind: qsgd, levels: optimal, bits: 8}", "{kind: sign, bucket: 64, error_feedback: false}",
        "{kind: sign, majority: true, bucket: 32}",
        "{kind: topk, density: 0.25, bucket: tensor, error_feedback: false}", "{kind: topk, density: 1}",
        "{kind: dynamic8, type: mantissa, bucket: 96, error_feedback: true}",
        "{kind: mx, element: e4m3, rounding: nearest, bucket: tensor, error_feedback: true}"}) {
    const CodecSpec spec = parse(text);
    EXPECT_EQ(to_text(parse(config::emit(write_codec(spec)))), to_text(spec)) << text;
    EXPECT_EQ(to_text(parse(to_text(spec))), to_text(spec));
  }
}

TEST(CodecSpec, Errors) {
  const std::string kinds = "none, fp16, bf16, onebit, qsgd, sign, topk, dynamic8, mx";
  EXPECT_EQ(error_of("{kind: qsdg}"),
            "a.yaml:1:8: codec.kind: 'qsdg' is not known, did you mean 'qsgd'?; allowed: " + kinds);
  EXPECT_EQ(error_of("qsdg"),
            "a.yaml:1:1: codec.kind: 'qsdg' is not known, did you mean 'qsgd'?; allowed: " + kinds);
  EXPECT_EQ(error_of("{bits: 4}"), "a.yaml:1:1: codec: the key 'kind' is missing; it must be given");
  EXPECT_EQ(error_of("[1]"), "a.yaml:1:1: codec: expected a map, got a list");
  EXPECT_EQ(error_of("{kind: qsgd, bits: 3}"),
            "a.yaml:1:20: codec.bits: '3' is not known; allowed: 2, 4, 8, 16");
  EXPECT_EQ(error_of("{kind: qsgd, bucket: 33}"),
            "a.yaml:1:22: codec.bucket: '33' is not a bucket of qsgd; allowed: a multiple of 32 or 'tensor'");
  EXPECT_EQ(error_of("{kind: qsgd, bucket: 0}"),
            "a.yaml:1:22: codec.bucket: '0' is not a bucket of qsgd; allowed: a multiple of 32 or 'tensor'");
  EXPECT_EQ(
      error_of("{kind: qsgd, bucket: column}"),
      "a.yaml:1:22: codec.bucket: 'column' is not a bucket of qsgd; allowed: a multiple of 32 or 'tensor'");
  EXPECT_EQ(
      error_of("{kind: onebit, bucket: -64}"),
      "a.yaml:1:24: codec.bucket: '-64' is not a bucket of onebit; allowed: a multiple of 32, 'tensor' or "
      "'column'");
  EXPECT_EQ(error_of("{kind: onebit, bits: 1}"),
            "a.yaml:1:16: codec.bits: unknown key; allowed here: kind, bucket, error_feedback");
  EXPECT_EQ(error_of("{kind: none, error_feedback: true}"),
            "a.yaml:1:14: codec.error_feedback: unknown key; allowed here: kind");
  EXPECT_EQ(error_of("{kind: qsgd, bits: 16, levels: optimal}"),
            "a.yaml:1:32: codec.levels: exponential and optimal levels take at most 8 bits; allowed with 16: "
            "sign_magnitude, interval");
  EXPECT_EQ(
      error_of("{kind: qsgd, levels: uniform}"),
      "a.yaml:1:22: codec.levels: 'uniform' is not known; allowed: sign_magnitude, interval, exponential, "
      "optimal");
  EXPECT_EQ(error_of("{kind: sign, error_feedback: true, majority: true}"),
            "a.yaml:1:46: codec.majority: a vote has no scale to feed an error back with; it goes with "
            "error_feedback: false alone");
  EXPECT_EQ(error_of("{kind: topk, density: 0}"),
            "a.yaml:1:23: codec.density: expected a number > 0 and <= 1, got '0'");
  EXPECT_EQ(error_of("{kind: topk, density: 1.5}"),
            "a.yaml:1:23: codec.density: expected a number > 0 and <= 1, got '1.5'");
  EXPECT_EQ(
      error_of("{kind: dynamic8, type: tree}"),
      "a.yaml:1:24: codec.type: 'tree' is not known; allowed: dynamic_tree, static_tree, linear, mantissa");
  EXPECT_EQ(
      error_of("{kind: mx, element: e3m2}"),
      "a.yaml:1:21: codec.element: 'e3m2' is not known, did you mean 'e5m2'?; allowed: e2m1, e4m3, e5m2");
  EXPECT_EQ(error_of("{kind: mx, bucket: 16}"),
            "a.yaml:1:20: codec.bucket: '16' is not a bucket of mx; allowed: a multiple of 32 or 'tensor'");
  EXPECT_EQ(error_of("{kind: onebit, error_feedback: 1}"),
            "a.yaml:1:32: codec.error_feedback: expected true or false, got '1'");
}

}  // namespace
}  // namespace lpsgd
