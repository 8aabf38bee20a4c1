#include "data/png.h"

#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "data/tiff_tags.h"

namespace lpsgd {

struct PngDecoder::Impl {
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::jmp_buf failed;
  char message[128] = {};
  std::span<const std::uint8_t> left;  // of the file
  std::int64_t height = 0, width = 0;
  int orientation = 1;
  std::vector<std::uint8_t> pixels;
  std::vector<png_bytep> rows;

  ~Impl() { end(); }

  void end() { png_destroy_read_struct(&png, &info, nullptr); }

  /// Leaves libpng's functions, which are C, for the caller of guarded().
  [[noreturn]] static void fail(png_structp png, png_const_charp message) {
    auto* decoder = static_cast<Impl*>(png_get_error_ptr(png));
    std::snprintf(decoder->message, sizeof decoder->message, "%s", message);
    std::longjmp(decoder->failed, 1);
  }
  static void ignore(png_structp, png_const_charp) {}
  static void read(png_structp png, png_bytep to, std::size_t size) {
    auto* decoder = static_cast<Impl*>(png_get_io_ptr(png));
    if (size > decoder->left.size()) png_error(png, "the file ends");
    std::memcpy(to, decoder->left.data(), size);
    decoder->left = decoder->left.subspan(size);
  }

  /// Calls `body`, which calls libpng. Nothing in `body` may need a destructor: an error jumps over it.
  template <class Body>
  void guarded(const std::string& name, const Body& body) {
    if (setjmp(failed) != 0) {
      end();
      throw FileError(fmt::format("{}: the PNG image is damaged: {}", name, message));
    }
    body();
  }

  void begin() {
    end();
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, &fail, &ignore);
    if (png != nullptr) info = png_create_info_struct(png);
    if (info == nullptr) throw std::bad_alloc();
    png_set_read_fn(png, this, &read);
    png_set_chunk_cache_max(png, 1);  // no texts, which may be large when decompressed
    png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // check_image_size() has others
  }

  void read_header() {
    png_read_info(png, info);
    width = png_get_image_width(png, info);
    height = png_get_image_height(png, info);
    const int kind = png_get_color_type(png, info), depth = png_get_bit_depth(png, info);
    if (depth == 16) png_set_strip_16(png);
    png_set_strip_alpha(png);
    if (kind == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
    if ((kind & PNG_COLOR_MASK_COLOR) == 0 && depth < 8) png_set_expand_gray_1_2_4_to_8(png);
    (kind & PNG_COLOR_MASK_COLOR) != 0 ? png_set_bgr(png) : png_set_gray_to_rgb(png);
    png_set_interlace_handling(png);
    png_read_update_info(png, info);
    if (png_get_rowbytes(png, info) != static_cast<std::size_t>(3 * width))
      png_error(png, "rows of an odd size");
  }

  void read_pixels() {
    png_read_image(png, rows.data());
    png_read_end(png, info);  // EXIF may follow the pixels
    png_bytep exif = nullptr;
    png_uint_32 size = 0;
    orientation = 1;
    if (png_get_eXIf_1(png, info, &size, &exif) != 0) orientation = orientation_tag({exif, size});
  }
};

PngDecoder::PngDecoder() : impl_(std::make_unique<Impl>()) {}
PngDecoder::~PngDecoder() = default;

Pixels PngDecoder::decode(std::span<const std::uint8_t> bytes, const std::string& name) {
  Impl& impl = *impl_;
  impl.left = bytes;
  impl.begin();
  impl.guarded(name, [&] { impl.read_header(); });
  check_image_size(impl.width, impl.height, name);
  const std::int64_t row_bytes = 3 * impl.width;
  impl.pixels.resize(static_cast<std::size_t>(row_bytes * impl.height));
  impl.rows.resize(static_cast<std::size_t>(impl.height));
  for (std::size_t y = 0; y < impl.rows.size(); ++y)
    impl.rows[y] = impl.pixels.data() + y * static_cast<std::size_t>(row_bytes);
  impl.guarded(name, [&] { impl.read_pixels(); });
  impl.end();
  return {impl.height, impl.width, 3, row_bytes, impl.pixels.data()};
}

int PngDecoder::orientation() const {
  return impl_->orientation;
}

}  // namespace lpsgd
