#include "data/jpeg_writer.h"

#include <csetjmp>
#include <cstdlib>

#include "core/error.h"
#include "data/libjpeg.h"

namespace lpsgd {

namespace {

/// libjpeg reports errors through error_exit, which must not return.
struct ErrorManager : jpeg_error_mgr {
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX] = "";
};

void leave(j_common_ptr info) {
  auto* errors = static_cast<ErrorManager*>(info->err);
  errors->format_message(info, errors->message);
  std::longjmp(errors->jump, 1);
}

struct Encoded {
  unsigned char* bytes = nullptr;  // from malloc
  unsigned long size = 0;
};

/// False for an error, whose message is in `errors`. Holds nothing that has a destructor: an error jumps over
/// them.
bool encode(const std::uint8_t* pixels, const ImageShape& shape, int quality, ErrorManager& errors,
            jpeg_compress_struct& info, Encoded& out) {
  if (setjmp(errors.jump)) return false;
  jpeg_create_compress(&info);
  jpeg_mem_dest(&info, &out.bytes, &out.size);
  info.image_height = static_cast<JDIMENSION>(shape.height);
  info.image_width = static_cast<JDIMENSION>(shape.width);
  info.input_components = static_cast<int>(shape.channels);
  info.in_color_space = shape.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, quality, TRUE);
  info.optimize_coding = TRUE;
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    // The library only reads the row.
    JSAMPROW row = const_cast<JSAMPROW>(pixels + static_cast<std::int64_t>(info.next_scanline) * shape.width *
                                                     shape.channels);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  return true;
}

}  // namespace

std::vector<std::uint8_t> write_jpeg(std::span<const std::uint8_t> pixels, const ImageShape& shape,
                                     int quality, const std::string& name) {
  require(shape.channels == 1 || shape.channels == 3, "a JPEG file has one or three channels");
  require(pixels.size() == static_cast<std::size_t>(shape.bytes()), "pixels have their shape's size");
  if (shape.height > 65500 || shape.width > 65500)
    throw FileError(
        fmt::format("{}: {} x {} pixels are too large for a JPEG file", name, shape.height, shape.width));
  ErrorManager errors;
  jpeg_compress_struct info{};
  info.err = jpeg_std_error(&errors);
  errors.error_exit = leave;
  Encoded encoded;
  const bool is_done = encode(pixels.data(), shape, quality, errors, info, encoded);
  jpeg_destroy_compress(&info);
  // After an error, which can only be a lack of memory, the library has not said where its buffer is.
  if (!is_done) throw FileError(fmt::format("{}: cannot be written as JPEG: {}", name, errors.message));
  std::vector<std::uint8_t> out(encoded.bytes, encoded.bytes + encoded.size);
  std::free(encoded.bytes);
  return out;
}

}  // namespace lpsgd
