// The loops of winograd.h. Included by winograd_avx2.cc and winograd_avx512.cc alone.
#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "nn/cpu/vector.h"
#include "nn/cpu/winograd.h"
#include "nn/maths_device.h"

namespace lpsgd::cpu::winograd {
namespace {

// One register, not sixteen numbers: how many registers the sums of a product take must be known.
using Register = cpu::Vector::Part;
constexpr std::int64_t width = static_cast<std::int64_t>(per_part);

inline Register all(float x) {
  return x - Register{};
}
inline Register fma(Register a, Register b, Register c) {
#if defined(__AVX512F__)
  return reinterpret_cast<Register>(
      _mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#else
  return reinterpret_cast<Register>(
      _mm256_fmadd_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
#endif
}

// The points at which polynomials are evaluated: 0, +-pa, +-pb and infinity. With 5/8 and 3/2, which
// oneDNN uses, too, rounding errors are half of those with the paper's 1 and 2 (Barabasz, Anderson,
// Soodhalter and Gregg, ACM TOMS 46(4), 2020, on the choice of points).
constexpr float pa = 0.625f, pb = 1.5f, pa2 = pa * pa, pb2 = pb * pb;
constexpr float at_zero = 1 / (pa2 * pb2), at_a = 1 / (2 * pa2 * (pa2 - pb2)),
                at_b = 1 / (2 * pb2 * (pb2 - pa2));

/// t = B^T d.
inline void inputs(const Register (&d)[6], Register (&t)[6]) {
  const Register even_a = fma(all(-pb2), d[2], d[4]), odd_a = fma(all(-pb2), d[1], d[3]);
  const Register even_b = fma(all(-pa2), d[2], d[4]), odd_b = fma(all(-pa2), d[1], d[3]);
  t[0] = fma(all(pa2 * pb2), d[0], fma(all(-pa2 - pb2), d[2], d[4]));
  t[1] = fma(all(pa), odd_a, even_a);
  t[2] = fma(all(-pa), odd_a, even_a);
  t[3] = fma(all(pb), odd_b, even_b);
  t[4] = fma(all(-pb), odd_b, even_b);
  t[5] = fma(all(pa2 * pb2), d[1], fma(all(-pa2 - pb2), d[3], d[5]));
}

/// y = A^T m.
inline void outputs(const Register (&m)[6], Register (&y)[4]) {
  const Register even_a = m[1] + m[2], odd_a = m[1] - m[2], even_b = m[3] + m[4], odd_b = m[3] - m[4];
  y[0] = m[0] + even_a + even_b;
  y[1] = fma(all(pa), odd_a, all(pb) * odd_b);
  y[2] = fma(all(pa2), even_a, all(pb2) * even_b);
  y[3] = fma(all(pa * pa2), odd_a, fma(all(pb * pb2), odd_b, m[5]));
}

/// z = A y.
inline void gradients(const Register (&y)[4], Register (&z)[6]) {
  const Register even_a = fma(all(pa2), y[2], y[0]), odd_a = fma(all(pa2), y[3], y[1]);
  const Register even_b = fma(all(pb2), y[2], y[0]), odd_b = fma(all(pb2), y[3], y[1]);
  z[0] = y[0];
  z[1] = fma(all(pa), odd_a, even_a);
  z[2] = fma(all(-pa), odd_a, even_a);
  z[3] = fma(all(pb), odd_b, even_b);
  z[4] = fma(all(-pb), odd_b, even_b);
  z[5] = y[3];
}

/// u = G g.
inline void weights(const Register (&g)[3], Register (&u)[6]) {
  const Register even_a = fma(all(pa2), g[2], g[0]), even_b = fma(all(pb2), g[2], g[0]);
  u[0] = all(at_zero) * g[0];
  u[1] = all(at_a) * fma(all(pa), g[1], even_a);
  u[2] = all(at_a) * fma(all(-pa), g[1], even_a);
  u[3] = all(at_b) * fma(all(pb), g[1], even_b);
  u[4] = all(at_b) * fma(all(-pb), g[1], even_b);
  u[5] = g[2];
}

/// g = G^T u.
inline void weight_gradients(const Register (&u)[6], Register (&g)[3]) {
  const Register even_a = all(at_a) * (u[1] + u[2]), odd_a = all(at_a) * (u[1] - u[2]);
  const Register even_b = all(at_b) * (u[3] + u[4]), odd_b = all(at_b) * (u[3] - u[4]);
  g[0] = fma(all(at_zero), u[0], even_a + even_b);
  g[1] = fma(all(pa), odd_a, all(pb) * odd_b);
  g[2] = fma(all(pa2), even_a, fma(all(pb2), even_b, u[5]));
}

/// out = T in T^T for the one-dimensional T that `step` computes: first along the rows of `get(i, j)`, then
/// along the columns; put(i, j, value) takes the results.
template <int N, int M, class Step, class Get, class Put>
inline void both_directions(const Step& step, const Get& get, const Put& put) {
  Register half[N][M];
#pragma GCC unroll 6
  for (int i = 0; i < N; ++i) {
    Register row[N];
#pragma GCC unroll 6
    for (int j = 0; j < N; ++j) row[j] = get(i, j);
    step(row, half[i]);
  }
#pragma GCC unroll 6
  for (int j = 0; j < M; ++j) {
    Register column[N], out[M];
#pragma GCC unroll 6
    for (int i = 0; i < N; ++i) column[i] = half[i][j];
    step(column, out);
#pragma GCC unroll 6
    for (int i = 0; i < M; ++i) put(i, j, out[i]);
  }
}

/// Where a tile lies: `at` is the offset of its first pixel, which may be outside of the image.
struct Place {
  std::int64_t row, column, at;
  bool inside;  // all of its pixels are in the image
};
inline Place place(const Tiles& t, std::int64_t number, std::int64_t pixels) {
  const std::int64_t of_image = number % (t.down * t.across), image = number / (t.down * t.across);
  const std::int64_t row = of_image / t.across * tile - t.above, column = of_image % t.across * tile - t.left;
  return {row, column, ((image * t.height + row) * t.width + column) * t.channels,
          row >= 0 && column >= 0 && row + pixels <= t.height && column + pixels <= t.width};
}

/// Calls body(get) for each tile and vector of channels; get(i, j) is a pixel, zero outside of the image.
template <int N, class Body>
inline void over_pixels(const float* x, const Tiles& t, std::int64_t number, const Body& body) {
  const Place p = place(t, number, N);
  const std::int64_t line = t.width * t.channels;
  if (p.inside) {
    for (std::int64_t c = 0; c < t.channels; c += width)
      body(c, [&](int i, int j) { return load_part(x + p.at + i * line + j * t.channels + c); });
    return;
  }
  for (std::int64_t c = 0; c < t.channels; c += width)
    body(c, [&](int i, int j) {
      const bool in = p.row + i >= 0 && p.row + i < t.height && p.column + j >= 0 && p.column + j < t.width;
      return in ? load_part(x + p.at + i * line + j * t.channels + c) : Register{};
    });
}

void transform_input(const float* x, const Tiles& tiles, std::int64_t first, std::int64_t count, float* v,
                     std::int64_t stride) {
  for (std::int64_t k = 0; k < count; ++k) {
    float* to = v + k * tiles.channels;
    over_pixels<6>(x, tiles, first + k, [&](std::int64_t c, const auto& get) {
      both_directions<6, 6>(inputs, get, [&](int i, int j, Register value) {
        store_part(to + (i * 6 + j) * stride + c, value);
      });
    });
  }
}

void transform_gradient(const float* dy, const Tiles& tiles, std::int64_t first, std::int64_t count, float* z,
                        std::int64_t stride) {
  for (std::int64_t k = 0; k < count; ++k) {
    float* to = z + k * tiles.channels;
    over_pixels<4>(dy, tiles, first + k, [&](std::int64_t c, const auto& get) {
      both_directions<4, 6>(gradients, get, [&](int i, int j, Register value) {
        store_part(to + (i * 6 + j) * stride + c, value);
      });
    });
  }
}

void transform_output(const float* m, std::int64_t stride, const Tiles& t, std::int64_t first,
                      std::int64_t count, const float* bias, bool relu, float* y) {
  const std::int64_t line = t.width * t.channels;
  for (std::int64_t k = 0; k < count; ++k) {
    const Place p = place(t, first + k, tile);
    for (std::int64_t c = 0; c < t.channels; c += width) {
      const Register added = bias ? load_part(bias + c) : Register{};
      const float* from = m + k * t.channels + c;
      both_directions<6, 4>(
          outputs, [&](int i, int j) { return load_part(from + (i * 6 + j) * stride); },
          [&](int i, int j, Register value) {
            if (!p.inside && (p.row + i >= t.height || p.column + j >= t.width)) return;
            value += added;
            if (relu) value = maths::relu(value);
            store_part(y + p.at + i * line + j * t.channels + c, value);
          });
    }
  }
}

/// sum (R, N * width) = the product of v (n, R), with values `step` and rows `next` apart, transposed, and w
/// (n, N * width). The first product starts the sums: with zeros the compiler would clear them in memory.
template <int R, int N>
[[gnu::always_inline]] inline void sum_products(const float* v, std::int64_t step, std::int64_t next,
                                                const float* w, std::int64_t columns, std::int64_t n,
                                                Register (&sum)[R][N]) {
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < N; ++i) sum[r][i] = all(v[r * step]) * load_part(w + i * width);
  for (std::int64_t k = 1; k < n; ++k) {
    Register row[N];
    for (int i = 0; i < N; ++i) row[i] = load_part(w + k * columns + i * width);
    for (int r = 0; r < R; ++r) {
      const Register value = all(v[k * next + r * step]);
      for (int i = 0; i < N; ++i) sum[r][i] = fma(value, row[i], sum[r][i]);
    }
  }
}

/// m (R, N * width) = v (R, in) u (in, N * width).
template <int R, int N>
[[gnu::always_inline]] inline void product_block(const float* v, const float* u, float* m, std::int64_t in,
                                                 std::int64_t out) {
  Register sum[R][N];
  sum_products<R, N>(v, in, 1, u, out, in, sum);
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) store_part(m + r * out + n * width, sum[r][n]);
}

// Sums fill the registers: 12 of 16 with AVX2, 24 of 32 with AVX-512.
[[gnu::always_inline]] inline void product_of(const float* v, const float* u, float* m, std::int64_t in,
                                              std::int64_t out) {
  constexpr int rows = width == 16 ? 12 : 6;
  static_assert(block_tiles % rows == 0);
  std::int64_t k = 0;
  for (; k + 2 * width <= out; k += 2 * width)
    for (std::int64_t r = 0; r < block_tiles; r += rows)
      product_block<rows, 2>(v + r * in, u + k, m + r * out + k, in, out);
  for (; k < out; k += width)
    for (std::int64_t r = 0; r < block_tiles; r += rows)
      product_block<rows, 1>(v + r * in, u + k, m + r * out + k, in, out);
}

// Where the compiler knows the distance of the rows, they need one address and not one each, for which there
// are not enough registers.
void product(const float* v, const float* u, float* m, std::int64_t in, std::int64_t out) {
  switch (in) {
    case 16:
      return product_of(v, u, m, 16, out);
    case 32:
      return product_of(v, u, m, 32, out);
    case 64:
      return product_of(v, u, m, 64, out);
    default:
      return product_of(v, u, m, in, out);
  }
}

/// s (R, N * width) += v^T z, of `count` rows.
template <int R, int N>
[[gnu::always_inline]] inline void add_product_block(const float* v, const float* z, std::int64_t count,
                                                     float* s, std::int64_t in, std::int64_t out) {
  Register sum[R][N];
  sum_products<R, N>(v, 1, in, z, out, count, sum);
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n)
      store_part(s + r * out + n * width, load_part(s + r * out + n * width) + sum[r][n]);
}

/// R rows at a time; `in` is a multiple of 16.
template <int R, int N>
[[gnu::always_inline]] inline void add_product_columns(const float* v, const float* z, std::int64_t count,
                                                       float* s, std::int64_t in, std::int64_t out) {
  for (std::int64_t c = 0; c < in; c += R) add_product_block<R, N>(v + c, z, count, s + c * out, in, out);
}

// Sums take 16 of 32 registers with AVX-512, and 8 of 16 with AVX2.
[[gnu::always_inline]] inline void add_product_of(const float* v, const float* z, std::int64_t count,
                                                  float* s, std::int64_t in, std::int64_t out) {
  constexpr int rows = width == 16 ? 16 : 8;
  static_assert(channel_block % rows == 0);
  std::int64_t k = 0;
  for (; k + 2 * width <= out; k += 2 * width)
    add_product_columns<rows / 2, 2>(v, z + k, count, s + k, in, out);
  for (; k < out; k += width) add_product_columns<rows, 1>(v, z + k, count, s + k, in, out);
}

void add_product(const float* v, const float* z, std::int64_t count, float* s, std::int64_t in,
                 std::int64_t out) {
  if (in == 16 && out == 16) return add_product_of(v, z, count, s, 16, 16);
  if (in == 32 && out == 32) return add_product_of(v, z, count, s, 32, 32);
  if (in == 64 && out == 64) return add_product_of(v, z, count, s, 64, 64);
  add_product_of(v, z, count, s, in, out);
}

void transform_weights(const float* w, std::int64_t filters, std::int64_t channels, std::int64_t first,
                       std::int64_t last, float* u) {
  alignas(64) float block[points][channel_block][width];
  for (std::int64_t k = first; k < last; k += channel_block) {
    for (std::int64_t c = 0; c < channels; c += width) {
      for (std::int64_t f = 0; f < channel_block; ++f) {
        const float* from = w + (k + f) * 9 * channels + c;
        both_directions<3, 6>(
            weights, [&](int i, int j) { return load_part(from + (i * 3 + j) * channels); },
            [&](int i, int j, Register value) { store_part(block[i * 6 + j][f], value); });
      }
      for (std::int64_t point = 0; point < points; ++point)
        for (std::int64_t i = 0; i < width; ++i)
          for (std::int64_t f = 0; f < channel_block; ++f)
            u[(point * channels + c + i) * filters + k + f] = block[point][f][i];
    }
  }
}

void transform_turned_weights(const float* w, std::int64_t filters, std::int64_t channels, std::int64_t first,
                              std::int64_t last, float* u) {
  for (std::int64_t k = first; k < last; ++k)
    for (std::int64_t c = 0; c < channels; c += width) {
      const float* from = w + k * 9 * channels + c;
      both_directions<3, 6>(
          weights, [&](int i, int j) { return load_part(from + (8 - i * 3 - j) * channels); },
          [&](int i, int j, Register value) {
            store_part(u + ((i * 6 + j) * filters + k) * channels + c, value);
          });
    }
}

void transform_weight_gradient(const float* s, std::int64_t filters, std::int64_t channels,
                               std::int64_t first, std::int64_t last, float* dw) {
  alignas(64) float block[9][channel_block][width];
  for (std::int64_t k = first; k < last; k += width) {
    for (std::int64_t c = 0; c < channels; c += channel_block) {
      for (std::int64_t i = 0; i < channel_block; ++i) {
        const float* from = s + (c + i) * filters + k;
        both_directions<6, 3>(
            weight_gradients,
            [&](int row, int column) { return load_part(from + (row * 6 + column) * channels * filters); },
            [&](int row, int column, Register value) { store_part(block[row * 3 + column][i], value); });
      }
      for (std::int64_t f = 0; f < width; ++f)
        for (std::int64_t at = 0; at < 9; ++at)
          for (std::int64_t i = 0; i < channel_block; ++i)
            dw[((k + f) * 9 + at) * channels + c + i] = block[at][i][f];
    }
  }
}

}  // namespace

extern const Kernels LPSGD_KERNELS;
const Kernels LPSGD_KERNELS{LPSGD_KERNELS_NAME,
                            (width == 16 ? 3 : 1) * block_tiles,
                            transform_input,
                            transform_gradient,
                            transform_output,
                            product,
                            add_product,
                            transform_weights,
                            transform_turned_weights,
                            transform_weight_gradient};

}  // namespace lpsgd::cpu::winograd
