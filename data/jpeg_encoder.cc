#include "data/jpeg_encoder.h"

#include <csetjmp>
#include <cstdlib>

#include "core/error.h"
#include "data/libjpeg.h"

namespace lpsgd {

namespace {

struct Encoder {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  std::jmp_buf failed;
  char message[JMSG_LENGTH_MAX] = {};
  unsigned char* data = nullptr;  // libjpeg's, from malloc
  unsigned long size = 0;

  Encoder() {
    info.err = jpeg_std_error(&errors);
    info.client_data = this;
    errors.error_exit = [](j_common_ptr c) {
      auto* encoder = static_cast<Encoder*>(c->client_data);
      c->err->format_message(c, encoder->message);
      std::longjmp(encoder->failed, 1);
    };
  }
  ~Encoder() {
    jpeg_destroy_compress(&info);
    std::free(data);
  }

  /// Nothing here may need a destructor: an error jumps over it.
  void encode(const Pixels& pixels, int quality) {
    if (setjmp(failed) != 0) throw Error(fmt::format("a JPEG image cannot be encoded: {}", message));
    jpeg_create_compress(&info);
    jpeg_mem_dest(&info, &data, &size);
    info.image_width = static_cast<JDIMENSION>(pixels.width);
    info.image_height = static_cast<JDIMENSION>(pixels.height);
    info.input_components = static_cast<int>(pixels.channels);
    info.in_color_space = pixels.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&info);
    jpeg_set_quality(&info, quality, TRUE);
    info.optimize_coding = TRUE;
    jpeg_start_compress(&info, TRUE);
    while (info.next_scanline < info.image_height) {
      auto* row = const_cast<JSAMPROW>(pixels.data + info.next_scanline * pixels.stride);
      jpeg_write_scanlines(&info, &row, 1);
    }
    jpeg_finish_compress(&info);
  }
};

}  // namespace

void encode_jpeg(const Pixels& pixels, int quality, std::vector<std::uint8_t>& out) {
  require(pixels.channels == 1 || pixels.channels == 3, "JPEG images have 1 or 3 channels");
  Encoder encoder;
  encoder.encode(pixels, quality);
  out.assign(encoder.data, encoder.data + encoder.size);
}

}  // namespace lpsgd
