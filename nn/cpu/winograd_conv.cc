// A convolution by Winograd's algorithm. With few channels each thread takes blocks of tiles through all
// steps while they are in its caches. With many channels the transformed weights leave no room there, so
// steps go over large parts of the batch, and oneDNN multiplies the matrices.
#include "nn/cpu/winograd_conv.h"

#include <algorithm>
#include <cstring>

#include "nn/cpu/sgemm.h"
#include "nn/cpu/winograd.h"

namespace lpsgd::cpu {
namespace {

using winograd::block_tiles;
using winograd::points;
using winograd::Tiles;

constexpr std::int64_t max_blocked_products = std::int64_t{64} * 64;  // pairs of channels
constexpr std::int64_t part_bytes = std::int64_t{8} << 20;            // of a part's transformed tiles
// The 36 rows of a block begin in different sets of the cache.
constexpr std::int64_t row_padding = 16;

std::int64_t ceil_div(std::int64_t n, std::int64_t by) {
  return (n + by - 1) / by;
}

class WinogradConvOp final : public Op {
 public:
  WinogradConvOp(Context& context, const Binding& b, const ConvDesc& desc)
      : context_(context), k_(*winograd::usable_kernels().front()), b_(b), bias_(desc.bias) {
    const Shape& in = b.inputs[0].shape;
    channels_ = in[2];
    filters_ = b.shape[2];
    blocked_ = channels_ * filters_ <= max_blocked_products;
    const std::int64_t down = ceil_div(b.shape[0], winograd::tile),
                       across = ceil_div(b.shape[1], winograd::tile);
    read_ = {in[0], in[1], channels_, down, across, desc.pad.h, desc.pad.w};
    write_ = {b.shape[0], b.shape[1], filters_, down, across, 0, 0};
    tiles_ = b.batch * down * across;
    // The gradient of the input is a convolution of the gradient of the output, which is padded by what is
    // missing to two pixels.
    const std::int64_t back_down = ceil_div(in[0], winograd::tile),
                       back_across = ceil_div(in[1], winograd::tile);
    read_gradient_ = {b.shape[0],  b.shape[1],     filters_,      back_down,
                      back_across, 2 - desc.pad.h, 2 - desc.pad.w};
    write_gradient_ = {in[0], in[1], channels_, back_down, back_across, 0, 0};
    back_tiles_ = b.batch * back_down * back_across;

    const std::int64_t row_floats = points * std::max(channels_, filters_) * 4;
    tiles_at_once_ = blocked_ ? block_tiles
                              : std::clamp(part_bytes / row_floats / block_tiles, std::int64_t{1},
                                           ceil_div(std::max(tiles_, back_tiles_), block_tiles)) *
                                    block_tiles;
    const std::int64_t copies = blocked_ ? context.threads : 1;
    const std::int64_t most = std::max(channels_, filters_);
    buffer_floats_ = points * row_stride(blocked_ && b.training ? k_.gradient_tiles : tiles_at_once_, most);
    weights_ = floats(ReorderUse::weights, points * channels_ * filters_);
    first_ = floats(ReorderUse::input, copies * buffer_floats_);
    second_ = floats(ReorderUse::output, copies * buffer_floats_);
    if (!b.training) return;
    sums_ = floats(ReorderUse::weight_gradients, (blocked_ ? 2 * copies : 1) * points * channels_ * filters_);
    if (bias_) bias_sums_ = Buffer<float>(static_cast<std::size_t>(2 * context.threads * filters_));
  }

  void forward(const Pass&) override {
    float* u = pointer(weights_);
    context_.parallel(filters_ / winograd::channel_block, [&](int, std::int64_t first, std::int64_t last) {
      k_.transform_weights(b_.parameters[0].value, filters_, channels_, first * winograd::channel_block,
                           last * winograd::channel_block, u);
    });
    convolve(as<float>(b_.inputs[0].value), read_, u, bias_ ? b_.parameters[1].value : nullptr, b_.relu,
             as<float>(b_.output), write_, tiles_);
  }

  void backward() override {
    weight_gradient();
    if (b_.inputs[0].gradient == nullptr) return;
    float* u = pointer(weights_);
    context_.parallel(filters_, [&](int, std::int64_t first, std::int64_t last) {
      k_.transform_turned_weights(b_.parameters[0].value, filters_, channels_, first, last, u);
    });
    convolve(as<float>(b_.output_gradients[0]), read_gradient_, u, nullptr, false,
             as<float>(b_.inputs[0].gradient), write_gradient_, back_tiles_);
  }

 private:
  dnnl::memory floats(ReorderUse use, std::int64_t n) {
    return context_.reorder_buffer(use, dnnl::memory::desc({n}, f32, dnnl::memory::format_tag::a));
  }
  static float* pointer(const dnnl::memory& m) { return static_cast<float*>(m.get_data_handle()); }
  /// Values from one point's rows to the next one's, of `tiles` tiles.
  static std::int64_t row_stride(std::int64_t tiles, std::int64_t width) {
    return tiles * width + row_padding;
  }

  /// Calls body(first, count, thread) for blocks of `size` tiles, each on one thread.
  template <class Body>
  void over_blocks(std::int64_t tiles, std::int64_t size, const Body& body) const {
    context_.parallel(ceil_div(tiles, size), [&](int thread, std::int64_t first, std::int64_t last) {
      for (std::int64_t block = first; block < last; ++block)
        body(block * size, std::min(size, tiles - block * size), thread);
    });
  }

  /// Calls body(first, count) for parts of tiles, and `body` uses all threads.
  template <class Body>
  void over_parts(std::int64_t tiles, const Body& body) const {
    for (std::int64_t first = 0; first < tiles; first += tiles_at_once_)
      body(first, std::min(tiles_at_once_, tiles - first));
  }

  /// y = x convolved with the transformed weights u (36, channels of x, channels of y).
  void convolve(const float* x, const Tiles& from, const float* u, const float* bias, bool relu, float* y,
                const Tiles& to, std::int64_t tiles) const {
    const std::int64_t in = from.channels, out = to.channels;
    const std::int64_t v_stride = row_stride(tiles_at_once_, in), m_stride = row_stride(tiles_at_once_, out);
    if (blocked_) {
      over_blocks(tiles, block_tiles, [&](std::int64_t first, std::int64_t count, int thread) {
        float* v = pointer(first_) + thread * buffer_floats_;
        float* m = pointer(second_) + thread * buffer_floats_;
        k_.transform_input(x, from, first, count, v, v_stride);
        for (std::int64_t p = 0; p < points; ++p)
          k_.product(v + p * v_stride, u + p * in * out, m + p * m_stride, in, out);
        k_.transform_output(m, m_stride, to, first, count, bias, relu, y);
      });
      return;
    }
    float* v = pointer(first_);
    float* m = pointer(second_);
    over_parts(tiles, [&](std::int64_t begin, std::int64_t size) {
      over_blocks(size, block_tiles, [&](std::int64_t first, std::int64_t count, int) {
        k_.transform_input(x, from, begin + first, count, v + first * in, v_stride);
      });
      for (std::int64_t p = 0; p < points; ++p)
        sgemm(size, out, in, {v + p * v_stride, in}, {u + p * in * out, out}, m + p * m_stride, out);
      over_blocks(size, block_tiles, [&](std::int64_t first, std::int64_t count, int) {
        k_.transform_output(m + first * out, m_stride, to, begin + first, count, bias, relu, y);
      });
    });
  }

  void weight_gradient() {
    const auto* x = as<float>(b_.inputs[0].value);
    const auto* dy = as<float>(b_.output_gradients[0]);
    const std::int64_t in = channels_, out = filters_,
                       at_once = blocked_ ? k_.gradient_tiles : tiles_at_once_;
    const std::int64_t v_stride = row_stride(at_once, in), z_stride = row_stride(at_once, out);
    const std::int64_t n = points * in * out;
    float* s = pointer(sums_);
    const std::int64_t copies = blocked_ ? context_.threads : 1;
    if (blocked_) {
      // A thread's sums, then those of its last blocks: so rounding errors grow less with the number of
      // tiles.
      constexpr std::int64_t tiles_of_part = 384;
      const std::int64_t blocks_at_once = tiles_of_part / at_once;
      std::memset(s, 0, static_cast<std::size_t>(2 * copies * n) * sizeof(float));
      const auto add = [](float* to, const float* from, std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i) to[i] += from[i];
      };
      over_blocks(tiles_, at_once, [&](std::int64_t first, std::int64_t count, int thread) {
        float* v = pointer(first_) + thread * buffer_floats_;
        float* z = pointer(second_) + thread * buffer_floats_;
        float* sums = s + 2 * thread * n;
        float* part = sums + n;
        k_.transform_input(x, read_, first, count, v, v_stride);
        k_.transform_gradient(dy, write_, first, count, z, z_stride);
        for (std::int64_t p = 0; p < points; ++p)
          k_.add_product(v + p * v_stride, z + p * z_stride, count, part + p * in * out, in, out);
        if (first / at_once % blocks_at_once != blocks_at_once - 1) return;
        add(sums, part, 0, n);
        std::memset(part, 0, static_cast<std::size_t>(n) * sizeof(float));
      });
      context_.parallel(n, [&](int, std::int64_t first, std::int64_t last) {
        for (std::int64_t copy = 1; copy < 2 * copies; ++copy) add(s, s + copy * n, first, last);
      });
    } else {
      float* v = pointer(first_);
      float* z = pointer(second_);
      over_parts(tiles_, [&](std::int64_t begin, std::int64_t size) {
        over_blocks(size, block_tiles, [&](std::int64_t first, std::int64_t count, int) {
          k_.transform_input(x, read_, begin + first, count, v + first * in, v_stride);
          k_.transform_gradient(dy, write_, begin + first, count, z + first * out, z_stride);
        });
        for (std::int64_t p = 0; p < points; ++p)
          sgemm(in, out, size, {v + p * v_stride, in, true}, {z + p * z_stride, out}, s + p * in * out, out,
                begin > 0);
      });
    }
    context_.parallel(out / winograd::channel_block, [&](int, std::int64_t first, std::int64_t last) {
      k_.transform_weight_gradient(s, out, in, first * winograd::channel_block,
                                   last * winograd::channel_block, b_.parameters[0].gradient);
    });
    if (bias_) bias_gradient(dy);
  }

  /// Sums of rows, and of these sums, so that rounding errors do not grow with the number of pixels.
  void bias_gradient(const float* dy) {
    constexpr std::int64_t rows_at_once = 256;
    const std::int64_t rows = b_.elements() / filters_;
    std::fill(bias_sums_.begin(), bias_sums_.end(), 0.0f);
    context_.parallel(ceil_div(rows, rows_at_once), [&](int thread, std::int64_t first, std::int64_t last) {
      float* sum = bias_sums_.data() + 2 * thread * filters_;
      float* part = sum + filters_;
      for (std::int64_t row = first * rows_at_once; row < std::min(rows, last * rows_at_once);
           row += rows_at_once) {
        std::fill_n(part, filters_, 0.0f);
        context_.k.f32.add_rows(dy + row * filters_, std::min(rows_at_once, rows - row), filters_, filters_,
                                part);
        for (std::int64_t c = 0; c < filters_; ++c) sum[c] += part[c];
      }
    });
    float* out = b_.parameters[1].gradient;
    for (std::int64_t c = 0; c < filters_; ++c) {
      out[c] = 0;
      for (int thread = 0; thread < context_.threads; ++thread)
        out[c] += bias_sums_.data()[2 * thread * filters_ + c];
    }
  }

  Context& context_;
  const winograd::Kernels& k_;
  Binding b_;
  bool bias_, blocked_ = false;
  std::int64_t channels_ = 0, filters_ = 0;
  Tiles read_, write_, read_gradient_, write_gradient_;
  std::int64_t tiles_ = 0, back_tiles_ = 0;  // of the batch, forward and for the gradient of the input
  std::int64_t tiles_at_once_ = 0, buffer_floats_ = 0;
  dnnl::memory weights_, first_, second_, sums_;
  Buffer<float> bias_sums_;
};

}  // namespace

bool winograd_is_profitable(const Binding& b, const ConvDesc& desc) {
  constexpr std::int64_t min_tiles = 32;  // of a batch, below which direct convolution is faster
  const Shape& out = b.shape;
  const std::int64_t tiles = ceil_div(out[0], winograd::tile) * ceil_div(out[1], winograd::tile);
  const bool blocks =
      b.inputs[0].shape[2] % winograd::channel_block == 0 && desc.filters % winograd::channel_block == 0;
  const bool full = 10 * out[0] * out[1] >= 6 * tiles * winograd::tile * winograd::tile;
  return !winograd::usable_kernels().empty() && b.type == DataType::f32 && desc.kernel == Size2{3, 3} &&
         desc.stride == Size2{1, 1} && std::max(desc.pad.h, desc.pad.w) <= 2 && desc.groups == 1 && blocks &&
         full && b.batch * tiles >= min_tiles;
}

std::unique_ptr<Op> make_winograd_conv(Context& context, const Binding& binding, const ConvDesc& desc) {
  return std::make_unique<WinogradConvOp>(context, binding, desc);
}

}  // namespace lpsgd::cpu
