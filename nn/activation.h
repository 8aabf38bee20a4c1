// The elementwise activations that layers and kernels of both devices know. Their arithmetic is in
// nn/maths_device.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lpsgd {

enum class Activation : std::uint8_t { relu, sigmoid, tanh, relu6, hardsigmoid, hardswish, silu, gelu };
inline constexpr std::size_t activation_kinds = 8;

/// Whether the gradient follows from the output, so that the input may be overwritten; else from the input.
constexpr bool gradient_reads_output(Activation kind) {
  return kind != Activation::hardswish && kind != Activation::silu && kind != Activation::gelu;
}

}  // namespace lpsgd
