// Sizes of encodings, stripes, the order of columns, and what does not fit together.
#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/quant/codec_cases.h"

namespace lpsgd {
namespace {

using namespace codec_cases;
constexpr CodingContext context{.seed = 9, .step = 7, .rank = 1, .round = 1};

TEST(Codec, Sizes) {
  const auto bytes = [](const char* text, std::int64_t n) {
    return codec_of(spec_of(text), n).encoded_bytes(n);
  };
  EXPECT_EQ(bytes("{kind: qsgd, bits: 4}", 512 * 100), 512 * 100 * 4.0625 / 8);
  EXPECT_EQ(bytes("onebit", 6400), 6400 * 2 / 8);
  EXPECT_EQ(bytes("{kind: qsgd, bits: 2}", 129), 4u + 32 + 4 + 4);
  EXPECT_EQ(bytes("{kind: qsgd, bits: 16, bucket: tensor}", 33), 4u + 68);
  EXPECT_EQ(bytes("{kind: onebit, bucket: tensor}", 33), 8u + 8);
  EXPECT_EQ(bytes("none", 33), 132u);
  EXPECT_EQ(bytes("fp16", 33), 66u);
  EXPECT_EQ(bytes("onebit", 0), 0u);
  EXPECT_EQ(bytes("sign", 65), 4u + 12);
  EXPECT_EQ(bytes("{kind: sign, majority: true}", 65), 12u);
  EXPECT_EQ(bytes("dynamic8", 4097), 4u + 4096 + 4 + 4);
  EXPECT_EQ(bytes("mx", 512), 512 * 4.25 / 8);
  EXPECT_EQ(bytes("mx", 512 + 33), 272u + 4 + 20);
  EXPECT_EQ(bytes("{kind: mx, element: e5m2, bucket: tensor}", 4096), 4096 * 8.25 / 8);
  EXPECT_EQ(bytes("{kind: mx, element: e4m3, bucket: 32}", 65), 2u * (4 + 32) + 4 + 4);
  EXPECT_EQ(bytes("{kind: topk, density: 0.01}", 4096 + 50), 8u * 41 + 8 * 1);
  EXPECT_EQ(bytes("{kind: topk, density: 0.01}", 4096 + 49), 8u * 41 + 8 * 1);  // at least one
  EXPECT_EQ(bytes("{kind: topk, density: 1, bucket: 32}", 33), 8u * 33);
  EXPECT_EQ(bytes("{kind: qsgd, bits: 4, levels: interval}", 512), 260u);
  EXPECT_EQ(bytes("{kind: qsgd, bits: 4, levels: optimal}", 1024), 8u + 2 * 260);
  EXPECT_EQ(bytes("{kind: qsgd, bits: 8, levels: optimal}", 512), 128u + 516);
  EXPECT_EQ(bytes("{kind: qsgd, bits: 2, levels: optimal}", 0), 0u);
  const TensorInfo conv{.name = "c", .kind = TensorKind::conv, .shape = {4, 5, 3, 3}, .elements = 180};
  const auto column = make_codec(spec_of("{kind: onebit, bucket: column}"), conv);
  EXPECT_EQ(column->bucket(), 3);
  EXPECT_EQ(column->encoded_bytes(180), 60u * 12);
  EXPECT_EQ(codec_of(spec_of("{kind: qsgd, bucket: tensor}"), 0).bucket(), 1);
}

// Every scale with every code, by the definition; scales that are never written decode to NaN.
TEST(Codec, EveryScaleAndCodeOfMxDecodes) {
  const auto magnitude = [](int code, int mantissa_bits, int bias) {
    const int exponent = code >> mantissa_bits, units = 1 << mantissa_bits, fraction = code % units;
    return std::ldexp(exponent > 0 ? units + fraction : fraction,
                      std::max(exponent, 1) - bias - mantissa_bits);
  };
  struct Element {
    const char* text;
    int bits, mantissa_bits, bias, largest_scale;
  };
  for (const Element& e : {Element{"{kind: mx, bucket: tensor}", 4, 1, 1, 251},
                           Element{"{kind: mx, element: e4m3, bucket: tensor}", 8, 3, 7, 245},
                           Element{"{kind: mx, element: e5m2, bucket: tensor}", 8, 2, 15, 238}})
    for (const CpuIsa isa : cpu_isas()) {
      const std::int64_t n = 256;
      const Codec codec = codec_of(spec_of(e.text), n, isa);
      for (int scale = 0; scale < 256; ++scale) {
        Bytes bytes(codec.encoded_bytes(n));
        for (std::size_t b = 0; b < 8; ++b) bytes[b] = static_cast<std::byte>(scale);
        for (std::size_t i = 0; i + 8 < bytes.size(); ++i)
          bytes[8 + i] = static_cast<std::byte>(e.bits == 8 ? i : i % 16 | (i / 16 % 16) << 4);
        std::vector<float> out(static_cast<std::size_t>(n));
        EXPECT_EQ(codec.decode(decoding(codec, bytes, out)), scale <= e.largest_scale)
            << e.text << ' ' << scale;
        for (std::size_t i = 0; i < out.size(); ++i) {
          const auto byte = static_cast<int>(bytes[8 + i * static_cast<std::size_t>(e.bits) / 8]);
          const int code = e.bits == 8 ? byte : i % 2 == 0 ? byte & 15 : byte >> 4;
          const int sign = 1 << (e.bits - 1);
          const double value = std::ldexp(magnitude(code % sign, e.mantissa_bits, e.bias), scale - 127);
          if (scale > e.largest_scale)
            ASSERT_TRUE(std::isnan(out[i])) << e.text << ' ' << scale;
          else
            ASSERT_EQ(out[i], static_cast<float>(code & sign ? -value : value))
                << e.text << ' ' << scale << ' ' << code;
        }
      }
    }
}

// A wrong use is an error, not wrong bytes.
TEST(Codec, RefusesWhatDoesNotFit) {
  CodecSpec spec = spec_of("{kind: qsgd, bits: 16}");
  EXPECT_THROW(Codec(spec, 0), Error);
  const Codec codec(spec, 64), other(spec, 128);
  std::vector<float> values(64), residual;
  Bytes bytes;
  EXPECT_THROW(other.encode(encoding(codec, values, residual, bytes), context), Error);
  std::get<QsgdOptions>(spec.options).levels = QsgdOptions::Levels::optimal;
  EXPECT_THROW(Codec(spec, 64), Error);
  spec.options = SignOptions();
  EXPECT_THROW(Codec(spec, 64), Error);
}

TEST(Codec, StripesCoverEveryBucketOnce) {
  for (const int ranks : {1, 2, 3, 5, 7})
    for (const std::int64_t n : lengths())
      for (const std::size_t tensor : {0u, 1u, 9u}) {
        const std::vector<Stripe> out = stripes(n, 64, ranks, tensor);
        ASSERT_EQ(out.size(), static_cast<std::size_t>(ranks));
        std::int64_t at = 0;
        std::vector<int> owners(out.size());
        for (std::size_t r = 0; r < out.size(); ++r) {
          EXPECT_EQ(out[r].first, at);
          EXPECT_TRUE(out[r].last == n || out[r].last % 64 == 0);
          at = out[r].last;
          EXPECT_EQ(out[r].owner, static_cast<int>((r + tensor) % out.size()));
        }
        EXPECT_EQ(at, n);
      }
  const std::vector<Stripe> three = stripes(64 * 4 + 1, 64, 3, 1);  // buckets 0, 1-2, 3-4
  EXPECT_EQ(three[0].last, 64);
  EXPECT_EQ(three[1].last, 3 * 64);
  EXPECT_EQ(three[2].last, 257);
}

TEST(Codec, ColumnOrder) {
  // conv in memory (O, H, W, I) to (O, H, I, W).
  const TensorInfo conv{.name = "c", .kind = TensorKind::conv, .shape = {2, 37, 3, 5}, .elements = 1110};
  const std::vector<float> memory = inputs(1110, 0);
  std::vector<float> encoded(1110), back(1110);
  to_column_order(conv.columns(), memory.data(), encoded.data());
  for (std::size_t o = 0; o < 2; ++o)
    for (std::size_t h = 0; h < 3; ++h)
      for (std::size_t w = 0; w < 5; ++w)
        for (std::size_t i = 0; i < 37; ++i)
          ASSERT_EQ(encoded[((o * 3 + h) * 37 + i) * 5 + w], memory[((o * 3 + h) * 5 + w) * 37 + i]);
  from_column_order(conv.columns(), encoded.data(), back.data());
  EXPECT_EQ(back, memory);
  // dense in memory (out, in) to (in, out).
  const TensorInfo dense{.name = "d", .kind = TensorKind::dense, .shape = {10, 111}, .elements = 1110};
  to_column_order(dense.columns(), memory.data(), encoded.data());
  EXPECT_EQ(encoded[3 * 10 + 7], memory[7 * 111 + 3]);
}

}  // namespace
}  // namespace lpsgd
