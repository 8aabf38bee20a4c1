// Sixteen numbers on every machine, held in as many registers as they need. GCC 12 splits a vector that is
// wider than a register, too, but compares, chooses and stores it number by number.
// Included by kernels_lanes.h and winograd_body.h alone, once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nn/maths_device.h"

namespace lpsgd::cpu {
namespace {

constexpr std::int64_t lanes = 16;
#if defined(__AVX512F__)
constexpr std::size_t register_bytes = 64;
#elif defined(__AVX2__)
constexpr std::size_t register_bytes = 32;
#else
constexpr std::size_t register_bytes = 16;
#endif
constexpr std::size_t per_part = register_bytes / 4, part_count = 64 / register_bytes;

template <class E>
struct Lanes {
  typedef E Part __attribute__((vector_size(register_bytes)));
  typedef E UnalignedPart __attribute__((vector_size(register_bytes), aligned(alignof(E)), may_alias));
  Part at[part_count] = {};

  Lanes() = default;
  Lanes(E all) {  // NOLINT(google-explicit-constructor): a number is a vector of its copies
    for (Part& p : at) p = all - Part{};  // also of -0
  }
  E operator[](std::int64_t i) const {
    return at[static_cast<std::size_t>(i) / per_part][static_cast<std::size_t>(i) % per_part];
  }
  template <class Map>
  [[gnu::always_inline]] static Lanes map(const Lanes& a, const Lanes& b, const Map& f) {
    Lanes out;
    for (std::size_t i = 0; i < part_count; ++i) out.at[i] = f(a.at[i], b.at[i]);
    return out;
  }
  friend Lanes operator+(Lanes a, Lanes b) {
    return map(a, b, [](Part x, Part y) { return x + y; });
  }
  friend Lanes operator-(Lanes a, Lanes b) {
    return map(a, b, [](Part x, Part y) { return x - y; });
  }
  friend Lanes operator*(Lanes a, Lanes b) {
    return map(a, b, [](Part x, Part y) { return x * y; });
  }
  friend Lanes operator/(Lanes a, Lanes b) {
    return map(a, b, [](Part x, Part y) { return x / y; });
  }
  friend Lanes operator-(Lanes a) {
    for (Part& p : a.at) p = -p;
    return a;
  }
  friend Lanes operator<<(Lanes a, int bits) {
    for (Part& p : a.at) p = p << bits;
    return a;
  }
  Lanes& operator+=(Lanes b) { return *this = *this + b; }
};

using Vector = Lanes<float>;
using Integers = Lanes<std::int32_t>;

template <class To, class From>
[[gnu::always_inline]] inline Lanes<To> bits_as(Lanes<From> v) {
  Lanes<To> out;
  for (std::size_t i = 0; i < part_count; ++i)
    out.at[i] = reinterpret_cast<typename Lanes<To>::Part>(v.at[i]);
  return out;
}

[[gnu::always_inline]] inline Vector::Part load_part(const float* p) {
  return *reinterpret_cast<const Vector::UnalignedPart*>(p);
}
[[gnu::always_inline]] inline void store_part(float* p, Vector::Part v) {
  *reinterpret_cast<Vector::UnalignedPart*>(p) = v;
}

template <class Choice>
[[gnu::always_inline]] inline Vector choose(Vector x, Vector y, Vector yes, Vector no, const Choice& choice) {
  Vector out;
  for (std::size_t i = 0; i < part_count; ++i) out.at[i] = choice(x.at[i], y.at[i], yes.at[i], no.at[i]);
  return out;
}

}  // namespace
}  // namespace lpsgd::cpu

namespace lpsgd::maths {

template <>
[[gnu::always_inline]] inline cpu::Vector choose_less(cpu::Vector x, cpu::Vector y, cpu::Vector yes,
                                                      cpu::Vector no) {
  using Part = cpu::Vector::Part;
  return cpu::choose(x, y, yes, no, [](Part a, Part b, Part c, Part d) { return a < b ? c : d; });
}
template <>
[[gnu::always_inline]] inline cpu::Vector choose_less_or_equal(cpu::Vector x, cpu::Vector y, cpu::Vector yes,
                                                               cpu::Vector no) {
  using Part = cpu::Vector::Part;
  return cpu::choose(x, y, yes, no, [](Part a, Part b, Part c, Part d) { return a <= b ? c : d; });
}

}  // namespace lpsgd::maths
