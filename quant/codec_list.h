// The list of codecs. The line of a kind names the type of its options. The variant below, the
// configuration's words, the kernels of every instruction set and those of the GPU follow from it
// (docs/add-a-codec.md).
#pragma once

#include <cstdint>
#include <type_traits>
#include <variant>

namespace lpsgd {

struct NoOptions {};

struct QsgdOptions {
  enum class Norm : std::uint8_t { max, l2 };
  enum class Levels : std::uint8_t { sign_magnitude, interval, exponential, optimal };
  std::int32_t bits = 4;  // 2, 4, 8 or 16
  Norm norm = Norm::max;
  Levels levels = Levels::sign_magnitude;
};

struct SignOptions {
  bool majority = false;  // the ranks vote: records have no scale
};

struct TopkOptions {
  double density = 0.01;  // the part of each bucket's values that is sent
};

struct Dynamic8Options {
  enum class Type : std::uint8_t { dynamic_tree, static_tree, linear, mantissa };
  Type type = Type::dynamic_tree;
};

struct MxOptions {
  enum class Element : std::uint8_t { e2m1, e4m3, e5m2 };  // exponent and mantissa bits
  enum class Rounding : std::uint8_t { stochastic, nearest };
  Element element = Element::e2m1;
  Rounding rounding = Rounding::stochastic;
};

// clang-format off
#define LPSGD_CODECS(codec) \
  codec(none, NoOptions) \
  codec(fp16, NoOptions) \
  codec(bf16, NoOptions) \
  codec(onebit, NoOptions) \
  codec(qsgd, QsgdOptions) \
  codec(sign, SignOptions) \
  codec(topk, TopkOptions) \
  codec(dynamic8, Dynamic8Options) \
  codec(mx, MxOptions)
// clang-format on

/// The variant of the given types, each once.
template <class Variant, class... Types>
struct VariantOf {
  using type = Variant;
};
template <class... Known, class Next, class... Rest>
struct VariantOf<std::variant<Known...>, Next, Rest...>
    : VariantOf<std::conditional_t<(std::is_same_v<Known, Next> || ...), std::variant<Known...>,
                                   std::variant<Known..., Next>>,
                Rest...> {};

/// The options of one kind, which CodecSpec::kind names.
#define LPSGD_OPTIONS(kind, Options) , Options
using CodecOptions = VariantOf<std::variant<NoOptions> LPSGD_CODECS(LPSGD_OPTIONS)>::type;

/// The options, which must be of this type. Always inlined: the linker must not use a copy compiled for
/// another instruction set in the rest of the program.
template <class Options>
[[gnu::always_inline]] inline const Options& options_of(const CodecOptions& options) {
  return *std::get_if<Options>(&options);
}

}  // namespace lpsgd
