#include "nn/cuda/small_conv_plan.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace lpsgd::cuda {
namespace {

constexpr int max_pixels = 512, max_halo = 1000;  // SmallDivisor takes numbers below 1024
constexpr int max_blocks = 256, multiprocessors = 132;
constexpr int max_warps = 8, pixels_of_warp = 32;
constexpr int max_shared = 96 << 10;  // every device that has the instructions gives a block 99 KiB

int divided(std::int64_t a, std::int64_t b) {
  return static_cast<int>((a + b - 1) / b);
}
SmallDivisor divisor(int d) {
  return {static_cast<std::uint32_t>(((1 << 20) + d - 1) / d)};
}

/// Bytes between pixels in shared memory (small_conv_device.h).
int pitch(int channels) {
  return 2 * channels + 16;
}

class Planner {
 public:
  Planner(const SmallConvShape& shape, ConvPass pass) : shape_(shape), pass_(pass) {
    best_.transposed = pass == ConvPass::input_gradient;
  }

  std::optional<SmallConv> run() {
    for (int w = shape_.out_w; w > 0; w = smaller(shape_.out_w, w))
      for (int h = shape_.out_h; h > 0; h = smaller(shape_.out_h, h)) consider(1, h, w);
    for (int images = 2; images <= max_pixels && images < 2 * shape_.batch; images *= 2)
      consider(images, shape_.out_h, shape_.out_w);
    if (least_ == std::numeric_limits<double>::infinity()) return std::nullopt;
    SmallConvShape& s = best_.shape;
    s.by_tile_w = divisor(s.tile_w), s.by_tile_h = divisor(s.tile_h);
    s.by_halo_w = divisor(s.halo_w), s.by_halo_h = divisor(s.halo_h);
    return best_;
  }

 private:
  /// The next smaller length of equal parts of `whole`; 0: none.
  static int smaller(int whole, int part) { return part == 1 ? 0 : divided(whole, divided(whole, part - 1)); }

  void consider(int images, int h, int w) {
    SmallConv c = best_;
    c.shape = shape_;
    SmallConvShape& s = c.shape;
    s.images = images, s.tile_h = h, s.tile_w = w;
    s.halo_h = (h - 1) * s.step + 3, s.halo_w = (w - 1) * s.step + 3;
    if (std::int64_t{images} * h * w > max_pixels) return;
    if (std::int64_t{images} * s.halo_h * s.halo_w > max_halo) return;
    s.tiles_y = divided(s.out_h, h), s.tiles_x = divided(s.out_w, w);
    const std::int64_t tiles = std::int64_t{divided(s.batch, images)} * s.tiles_y * s.tiles_x;
    if (tiles > std::numeric_limits<int>::max()) return;
    s.tiles = static_cast<int>(tiles);
    const double cost = pass_ == ConvPass::weight_gradient ? plan_gradient(c) : plan_product(c);
    if (c.shared > max_shared || cost >= least_) return;
    least_ = cost;
    best_ = c;
  }

  /// The time that each multiprocessor takes, in bytes that it could have read. In that of three bytes per
  /// value a product with 3x3 weights is computed; pixels that warps compute in vain count.
  static double cost(int blocks, double bytes_of_block, int rounds, double halo_bytes, double product_bytes) {
    return std::max(blocks, multiprocessors) * (bytes_of_block + rounds * (halo_bytes + 3 * product_bytes));
  }

  double plan_product(SmallConv& c) const {
    const SmallConvShape& s = c.shape;
    const int across = s.out_channels / (s.out_channels % 32 == 0 ? 32 : 16);
    const int rows = std::min(max_warps / across, divided(s.pixels(), pixels_of_warp));
    const int computed = divided(s.pixels(), rows * pixels_of_warp) * rows * pixels_of_warp;
    const int filters = c.transposed ? s.in_channels : s.out_channels;
    const int channels = c.transposed ? s.out_channels : s.in_channels;
    const int weights = filters * (9 * 2 * channels + 16);
    c.threads = 32 * across * rows;
    c.blocks = std::min(s.tiles, max_blocks);
    c.buffers = s.tiles > c.blocks ? 2 : 1;
    c.shared = weights + c.buffers * s.halo_pixels() * pitch(s.in_channels);
    const double value = 2.0 * s.in_channels;
    return cost(c.blocks, weights, divided(s.tiles, c.blocks), value * s.halo_pixels(), value * computed);
  }

  double plan_gradient(SmallConv& c) const {
    const SmallConvShape& s = c.shape;
    const int units = s.in_channels / 16 * (s.out_channels / 16), chunks = divided(s.pixels(), 16);
    const int warps = static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::min(chunks, max_warps))));
    c.threads = 32 * warps;
    c.blocks = std::min(s.tiles, std::max(1, max_blocks / units));
    c.buffers = s.tiles > c.blocks ? 2 : 1;
    const int sums = small_conv_unit * static_cast<int>(sizeof(float));
    c.shared = std::max(c.buffers * (s.halo_pixels() + 16 * chunks) * pitch(16), warps / 2 * sums);
    return cost(units * c.blocks, 2 * sums, divided(s.tiles, c.blocks), 32.0 * (s.halo_pixels() + s.pixels()),
                32.0 * 16 * warps * divided(chunks, warps));
  }

  SmallConvShape shape_;
  ConvPass pass_;
  SmallConv best_;
  double least_ = std::numeric_limits<double>::infinity();
};

SmallConvMemory forward_memory(const SmallConvTensors& t) {
  return {static_cast<const Bf16*>(t.input),
          static_cast<const Bf16*>(t.weights),
          t.bias,
          t.relu,
          static_cast<Bf16*>(t.output),
          t.norm};
}
SmallConvMemory input_gradient_memory(const SmallConvTensors& t) {
  return {static_cast<const Bf16*>(t.output), static_cast<const Bf16*>(t.weights), nullptr, false,
          static_cast<Bf16*>(t.input)};
}

}  // namespace

std::optional<SmallConv> plan_small_conv(const ConvProblem& p, int capability_major) {
  const auto covered = [](std::int64_t channels) {
    return channels >= 16 && channels <= 64 && channels % 16 == 0;
  };
  constexpr std::int64_t max_side = 1 << 16;
  const bool transposed = p.pass == ConvPass::input_gradient;
  const bool is_padded = p.in[2] < 16 && !transposed;
  if (capability_major < 8 || p.compute != Compute::bf16 || p.type != DataType::bf16 || p.groups != 1 ||
      p.kernel != Size2{3, 3} || p.pad != Size2{1, 1} || p.stride.h != p.stride.w || p.stride.h < 1 ||
      p.stride.h > 2 || !(covered(p.in[2]) || is_padded) || !covered(p.out[2]) ||
      std::max(p.in[0], p.in[1]) > max_side)
    return std::nullopt;
  const Shape &in = transposed ? p.out : p.in, &out = transposed ? p.in : p.out;
  const auto small = [](std::int64_t n) { return static_cast<int>(n); };
  SmallConvShape s;
  s.batch = p.batch;
  s.in_h = small(in[0]), s.in_w = small(in[1]), s.in_channels = small(in[2]);
  s.stored_channels = s.in_channels;
  if (is_padded) s.in_channels = 16;
  s.out_h = small(out[0]), s.out_w = small(out[1]), s.out_channels = small(out[2]);
  (transposed ? s.spread : s.step) = small(p.stride.h);
  return Planner(s, p.pass).run();
}

std::int64_t small_conv_workspace(const SmallConv& conv, ConvPass pass) {
  return pass == ConvPass::weight_gradient
             ? small_conv_partials(conv) * static_cast<std::int64_t>(sizeof(float))
             : 0;
}

cudaError_t run_small_conv(const SmallConv& conv, ConvPass pass, const SmallConvTensors& t, void* workspace,
                           cudaStream_t stream) {
  switch (pass) {
    case ConvPass::input_gradient:
      return launch_small_conv(conv, input_gradient_memory(t), stream);
    case ConvPass::weight_gradient:
      return launch_small_conv_gradient(
          conv,
          {static_cast<const Bf16*>(t.input), static_cast<const Bf16*>(t.output),
           static_cast<float*>(workspace), t.weight_gradient, t.norm},
          stream);
    default:
      return launch_small_conv(conv, forward_memory(t), stream);
  }
}

cudaError_t run_small_conv(const SmallConv& conv, const SmallConvTensors& t, const NormState& state,
                           cudaStream_t stream) {
  return launch_small_conv(conv, forward_memory(t), state, stream);
}

cudaError_t run_small_conv(const SmallConv& conv, const SmallConvTensors& t, const NormInput& norm,
                           const NormState& state, cudaStream_t stream) {
  return launch_small_conv(conv, input_gradient_memory(t), norm, state, stream);
}

}  // namespace lpsgd::cuda
