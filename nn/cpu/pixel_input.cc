// Images from bytes to the network's input: crop, mirror and scale in one pass.
#include <algorithm>
#include <tuple>

#include "nn/cpu/context.h"

namespace lpsgd::cpu {
namespace {

template <class T>
class PixelOp final : public PixelInput {
 public:
  PixelOp(Context& context, const PixelDesc& desc) : context_(context), d_(desc) {
    for (const std::array<float, 256>& channel : scaled_bytes(desc.norm)) {
      std::array<T, 256>& row = table_.emplace_back();
      std::ranges::transform(channel, row.begin(), [](float x) { return narrow<T>(x); });
    }
  }

  void upload(const Pass& pass, std::span<const std::uint8_t> pixels, Event* read) override {
    const auto each = [&]<std::int64_t channels>() {
      context_.parallel(d_.batch, [&](int, std::int64_t first, std::int64_t last) {
        for (std::int64_t n = first; n < last; ++n)
          sample<channels>(pixels.data() + n * d_.stored.bytes(),
                           pass.crops.empty() ? PixelCrop{} : pass.crops[static_cast<std::size_t>(n)],
                           as<T>(d_.output) + n * d_.sample.bytes());
      });
    };
    // With a constant number of channels a row is several times as fast.
    if (d_.stored.channels == 3)
      each.template operator()<3>();
    else if (d_.stored.channels == 1)
      each.template operator()<1>();
    else
      each.template operator()<0>();
    if (read) read->record(StreamView());
  }

 private:
  template <std::int64_t channels>
  void sample(const std::uint8_t* image, const PixelCrop& crop, T* out) const {
    const std::int64_t width = d_.sample.width, c = d_.stored.channels;
    // Columns [first, last) of the unmirrored sample lie in the image.
    const std::int64_t first = std::clamp<std::int64_t>(-crop.across, 0, width);
    const std::int64_t last = std::clamp<std::int64_t>(d_.stored.width - crop.across, first, width);
    for (std::int64_t y = 0; y < d_.sample.height; ++y, out += width * c) {
      const std::int64_t from = y + crop.down;
      if (from < 0 || from >= d_.stored.height || first == last) {
        black(0, width, false, out);
        continue;
      }
      black(0, first, crop.mirrored, out);
      const std::uint8_t* in = image + (from * d_.stored.width + first + crop.across) * c;
      if (crop.mirrored)
        row<channels>(in, last - first, -c, out + (width - 1 - first) * c);
      else
        row<channels>(in, last - first, c, out + first * c);
      black(last, width, crop.mirrored, out);
    }
  }
  /// `count` pixels, each written `step` values after the one before.
  template <std::int64_t channels>
  void row(const std::uint8_t* in, std::int64_t count, std::int64_t step, T* out) const {
    const std::int64_t n = channels > 0 ? channels : d_.stored.channels;
    const std::array<T, 256>* table = table_.data();
    for (std::int64_t x = 0; x < count; ++x, in += n, out += step)
      for (std::int64_t c = 0; c < n; ++c) out[c] = table[c][in[c]];
  }
  /// Columns [begin, end) of the unmirrored sample.
  void black(std::int64_t begin, std::int64_t end, bool mirrored, T* line) const {
    if (mirrored) std::tie(begin, end) = std::pair(d_.sample.width - end, d_.sample.width - begin);
    const std::int64_t n = d_.stored.channels;
    for (std::int64_t x = begin; x < end; ++x)
      for (std::int64_t c = 0; c < n; ++c) line[x * n + c] = table_[static_cast<std::size_t>(c)][0];
  }

  Context& context_;
  const PixelDesc d_;
  std::vector<std::array<T, 256>> table_;  // (C, 256): the scaled value of every byte
};

}  // namespace

std::unique_ptr<PixelInput> make_pixel_input(Context& context, const PixelDesc& desc) {
  return with_type(desc.type, [&]<class T>() -> std::unique_ptr<PixelInput> {
    return std::make_unique<PixelOp<T>>(context, desc);
  });
}

}  // namespace lpsgd::cpu
