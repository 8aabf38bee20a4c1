#include "data/jpeg.h"

#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "data/colour.h"
#include "data/libjpeg.h"
#include "data/tiff_tags.h"

namespace lpsgd {

namespace {

constexpr int app1 = JPEG_APP0 + 1;
/// Decoded beside the crop: the filter that enlarges colour takes its neighbours from there, and an image a
/// few pixels wide would get another filter.
constexpr std::int64_t margin = 8;
/// Bytes that libjpeg may take: a file of several scans needs all of its coefficients.
constexpr long max_coefficients = 512L << 20;

/// Messages of libjpeg that mean missing or damaged data. It reports them as warnings and goes on with grey.
bool loses_data(int message) {
  switch (message) {
    case JWRN_ARITH_BAD_CODE:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_JPEG_EOF:
    case JWRN_MUST_RESYNC:
      return true;
    default:
      return false;
  }
}

/// Whether an end marker follows the header. Compressed data cannot hold one; looked for from the end, since
/// programs append bytes of their own.
bool has_end_marker(std::span<const std::uint8_t> data) {
  while (data.size() >= 2) {
    const void* found = memrchr(data.data(), 0xFF, data.size() - 1);
    if (!found) return false;
    const std::size_t at = static_cast<std::size_t>(static_cast<const std::uint8_t*>(found) - data.data());
    if (data[at + 1] == JPEG_EOI) return true;
    data = data.first(at + 1);
  }
  return false;
}

/// Red, green, blue over inverted cyan, magenta, yellow, black: each times black / 255, as Pillow rounds it.
/// In place, row by row.
void cmyk_to_rgb(std::uint8_t* row, std::int64_t width) {
  const std::uint8_t* in = row;
  for (std::int64_t x = 0; x < width; ++x, in += 4, row += 3) {
    const std::uint32_t black = in[3];
    for (int c = 0; c < 3; ++c) {
      const std::uint32_t product = in[c] * black + 128;
      row[c] = static_cast<std::uint8_t>((product + (product >> 8)) >> 8);
    }
  }
}

/// In place.
void rgb_to_luminance(std::uint8_t* row, std::int64_t width) {
  const std::uint8_t* in = row;
  for (std::int64_t x = 0; x < width; ++x, in += 3) row[x] = luminance(in);
}

}  // namespace

bool is_jpeg(std::span<const std::uint8_t> bytes) {
  return bytes.size() >= 3 && bytes[0] == 0xFF && bytes[1] == 0xD8 && bytes[2] == 0xFF;
}

struct JpegDecoder::Impl {
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  std::jmp_buf failed;
  char message[JMSG_LENGTH_MAX] = {};
  std::string name;
  std::int64_t channels;
  int orientation = 1;
  std::vector<std::uint8_t> pixels;

  explicit Impl(std::int64_t wanted) : channels(wanted) {
    info.err = jpeg_std_error(&errors);
    errors.error_exit = [](j_common_ptr c) { fail(c); };
    errors.emit_message = [](j_common_ptr c, int level) {
      if (level < 0 && loses_data(c->err->msg_code)) fail(c);
    };
    progress.progress_monitor = [](j_common_ptr c) {
      const auto* decoder = static_cast<Impl*>(c->client_data);
      if (decoder->info.input_scan_number <= max_scans) return;
      fail(c, "more than 100 scans");
    };
    info.client_data = this;
  }
  ~Impl() { jpeg_destroy_decompress(&info); }

  /// Leaves libjpeg's functions, which are C, for the caller of guarded().
  [[noreturn]] static void fail(j_common_ptr c, const char* own_message = nullptr) {
    auto* decoder = static_cast<Impl*>(c->client_data);
    if (c->err->msg_code == JERR_NO_BACKING_STORE) own_message = "its coefficients need more than 512 MiB";
    if (own_message)
      std::snprintf(decoder->message, sizeof decoder->message, "%s", own_message);
    else
      c->err->format_message(c, decoder->message);
    std::longjmp(decoder->failed, 1);
  }

  j_common_ptr common() { return reinterpret_cast<j_common_ptr>(&info); }

  /// Calls `body`, which calls libjpeg. Nothing in `body` may need a destructor: an error jumps over it.
  template <class Body>
  void guarded(const Body& body) {
    if (setjmp(failed) != 0) throw FileError(fmt::format("{}: {}", name, message));
    body();
  }

  void read_header(std::span<const std::uint8_t> bytes) {
    guarded([&] {
      // A new object: an old one keeps tables, and a file without its own would be decoded with those of the
      // file before.
      jpeg_destroy_decompress(&info);
      jpeg_create_decompress(&info);
      info.progress = &progress;
      info.mem->max_memory_to_use = max_coefficients;
      jpeg_save_markers(&info, app1, 0xFFFF);
      jpeg_mem_src(&info, bytes.data(), bytes.size());
      jpeg_read_header(&info, TRUE);
    });
    check_image_size(info.image_width, info.image_height, name);
    if (!has_end_marker(bytes.last(info.src->bytes_in_buffer)))
      throw FileError(fmt::format("{}: truncated: the JPEG file has no end marker", name));
    orientation = 1;
    for (auto* marker = info.marker_list; marker && orientation == 1; marker = marker->next)
      if (marker->marker == app1) orientation = exif_orientation({marker->data, marker->data_length});
  }

  /// The channels that libjpeg gives: it does not convert CMYK.
  std::int64_t decoded_channels() {
    const bool inks = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
    info.out_color_space = inks ? JCS_CMYK : channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    return inks ? 4 : channels;
  }

  void scale(const Box& box, std::int64_t out_height, std::int64_t out_width) {
    info.scale_num = 1;
    info.scale_denom = 8;
    while (info.scale_num < 8 &&
           (box.width * info.scale_num < 8 * out_width || box.height * info.scale_num < 8 * out_height))
      info.scale_num *= 2;
    // Without it a picture does not depend on which of its rows are decoded.
    info.do_block_smoothing = FALSE;
  }

  /// [first, last) of the scaled picture for `size` pixels from `from`.
  std::pair<std::int64_t, std::int64_t> scaled(std::int64_t from, std::int64_t size, JDIMENSION all) const {
    const auto edge = [&](std::int64_t x) { return (x * info.scale_num + 4) / 8; };
    const std::int64_t first = std::min<std::int64_t>(edge(from), all - 1);
    return {first, std::clamp<std::int64_t>(edge(from + size), first + 1, all)};
  }

  /// libjpeg-turbo 2.1 crops wrongly where scaled decoding enlarges colour in part, and the rest is left to
  /// be done: with sampling such as 4 x 2.
  bool can_crop_columns() const {
    return std::all_of(info.comp_info, info.comp_info + info.num_components, [&](const auto& c) {
      const int size = c.DCT_scaled_size, least = info.min_DCT_scaled_size;
      return size == least || c.h_samp_factor * size == info.max_h_samp_factor * least;
    });
  }

  Pixels decode(const Box& box, std::int64_t out_height, std::int64_t out_width) {
    scale(box, out_height, out_width);
    const std::int64_t stored = decoded_channels();
    guarded([&] { jpeg_start_decompress(&info); });
    const auto [left, right] = scaled(box.left, box.width, info.output_width);
    const auto [top, bottom] = scaled(box.top, box.height, info.output_height);
    JDIMENSION x = 0;
    if (can_crop_columns()) {
      x = static_cast<JDIMENSION>(std::max<std::int64_t>(0, left - margin));
      auto width = static_cast<JDIMENSION>(std::min<std::int64_t>(info.output_width, right + margin)) - x;
      guarded([&] { jpeg_crop_scanline(&info, &x, &width); });
    }
    const std::int64_t stride = info.output_width * stored;
    pixels.resize(std::max(pixels.size(), static_cast<std::size_t>(stride * (bottom - top))));
    guarded([&] { read_rows(top, bottom, stride); });
    for (std::int64_t y = 0; stored == 4 && y < bottom - top; ++y) convert_inks(pixels.data() + y * stride);
    guarded([&] { jpeg_abort_decompress(&info); });
    return {bottom - top, right - left, channels, stride, pixels.data() + (left - x) * channels};
  }

  void read_rows(std::int64_t top, std::int64_t bottom, std::int64_t stride) {
    if (top > 0) jpeg_skip_scanlines(&info, static_cast<JDIMENSION>(top));
    while (info.output_scanline < static_cast<JDIMENSION>(bottom)) {
      JSAMPROW row = pixels.data() + std::max<std::int64_t>(0, info.output_scanline - top) * stride;
      if (jpeg_read_scanlines(&info, &row, 1) == 0) fail(common(), "the JPEG file ends too early");
    }
  }

  void convert_inks(std::uint8_t* row) const {
    cmyk_to_rgb(row, info.output_width);
    if (channels == 1) rgb_to_luminance(row, info.output_width);
  }
};

JpegDecoder::JpegDecoder(std::int64_t channels) : impl_(std::make_unique<Impl>(channels)) {}

JpegDecoder::~JpegDecoder() = default;

void JpegDecoder::open(std::span<const std::uint8_t> bytes, const std::string& name) {
  impl_->name = name;
  impl_->read_header(bytes);
}

std::int64_t JpegDecoder::width() const {
  return impl_->info.image_width;
}

std::int64_t JpegDecoder::height() const {
  return impl_->info.image_height;
}

int JpegDecoder::components() const {
  return impl_->info.num_components;
}

int JpegDecoder::orientation() const {
  return impl_->orientation;
}

Pixels JpegDecoder::decode(const Box& box, std::int64_t out_height, std::int64_t out_width) {
  return impl_->decode(box, out_height, out_width);
}

}  // namespace lpsgd
