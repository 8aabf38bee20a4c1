// CUDA's half-precision numbers as far as lpsgd's kernels use them: conversion from and to float32.
#pragma once

#include <bit>

struct __half {
  unsigned short bits;
};

/// To nearest, ties to even; every NaN becomes 0x7fff.
inline __half __float2half_rn(float x) {
  if (x != x) return {0x7fff};
  return {std::bit_cast<unsigned short>(static_cast<_Float16>(x))};
}
inline float __half2float(__half x) {
  return static_cast<float>(std::bit_cast<_Float16>(x.bits));
}
inline unsigned short __half_as_ushort(__half x) {
  return x.bits;
}
inline __half __ushort_as_half(unsigned short bits) {
  return {bits};
}
