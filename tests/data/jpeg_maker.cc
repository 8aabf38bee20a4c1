#include "tests/data/jpeg_maker.h"

#include <fmt/format.h>

#include <cstdlib>
#include <stdexcept>

#include "data/libjpeg.h"

namespace lpsgd {

namespace {

using Colour = JpegKind::Colour;

int channels_of(Colour colour) {
  return colour == Colour::grey ? 1 : colour == Colour::cmyk || colour == Colour::ycck ? 4 : 3;
}

J_COLOR_SPACE input_space(Colour colour) {
  return colour == Colour::grey ? JCS_GRAYSCALE : channels_of(colour) == 4 ? JCS_CMYK : JCS_RGB;
}

J_COLOR_SPACE stored_space(Colour colour) {
  switch (colour) {
    case Colour::grey:
      return JCS_GRAYSCALE;
    case Colour::rgb:
      return JCS_RGB;
    case Colour::cmyk:
      return JCS_CMYK;
    case Colour::ycck:
      return JCS_YCCK;
    default:
      return JCS_YCbCr;
  }
}

std::uint8_t sample(int y, int x, int c, std::uint32_t& state) {
  state = state * 1664525u + 1013904223u;
  const int noise = static_cast<int>(state >> 28);
  const int edge = (x / 9 + y / 7) % 2 == 0 ? 60 : 0;
  return static_cast<std::uint8_t>((x * (2 + c) + y * (3 - c % 3) + edge + noise + 40 * c) % 251);
}

/// APP1 with one tag, the orientation.
Bytes exif(int orientation, bool big) {
  Bytes out{'E', 'x', 'i', 'f', 0, 0};
  const auto number = [&](unsigned value, int bytes) {
    for (int i = 0; i < bytes; ++i)
      out.push_back(static_cast<std::uint8_t>(value >> 8 * (big ? bytes - 1 - i : i)));
  };
  out.insert(out.end(), 2, big ? 'M' : 'I');
  number(42, 2);
  number(8, 4);
  number(1, 2);
  number(274, 2);
  number(3, 2);
  number(1, 4);
  number(static_cast<unsigned>(orientation), 2);
  number(0, 2);
  number(0, 4);
  return out;
}

[[noreturn]] void fail(j_common_ptr c) {
  char message[JMSG_LENGTH_MAX];
  c->err->format_message(c, message);
  std::fprintf(stderr, "jpeg_maker: %s\n", message);
  std::abort();
}

}  // namespace

std::string JpegKind::name() const {
  return fmt::format("{}x{} colour {} sampling {}x{}{}{} restart {} orientation {}", width, height,
                     static_cast<int>(colour), h, v, progressive ? " progressive" : "",
                     arithmetic ? " arithmetic" : "", restart_rows, orientation);
}

Bytes make_jpeg(const JpegKind& kind) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  errors.error_exit = fail;
  jpeg_create_compress(&info);
  unsigned char* data = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &data, &size);
  info.image_width = static_cast<JDIMENSION>(kind.width);
  info.image_height = static_cast<JDIMENSION>(kind.height);
  info.input_components = channels_of(kind.colour);
  info.in_color_space = input_space(kind.colour);
  jpeg_set_defaults(&info);
  jpeg_set_colorspace(&info, stored_space(kind.colour));
  jpeg_set_quality(&info, kind.quality, TRUE);
  for (int i = 0; i < info.num_components; ++i) {
    const bool full = i == 0 || i == 3;
    info.comp_info[i].h_samp_factor = full && info.num_components > 1 ? kind.h : 1;
    info.comp_info[i].v_samp_factor = full && info.num_components > 1 ? kind.v : 1;
  }
  if (kind.progressive) jpeg_simple_progression(&info);
  info.arith_code = kind.arithmetic ? TRUE : FALSE;
  info.restart_in_rows = kind.restart_rows;
  jpeg_start_compress(&info, TRUE);
  if (kind.orientation > 0) {
    const Bytes marker = exif(kind.orientation, kind.big_endian);
    jpeg_write_marker(&info, JPEG_APP0 + 1, marker.data(), static_cast<unsigned>(marker.size()));
  }
  std::uint32_t state = 1;
  Bytes row(static_cast<std::size_t>(kind.width * info.input_components));
  for (int y = 0; y < kind.height; ++y) {
    for (int x = 0; x < kind.width; ++x)
      for (int c = 0; c < info.input_components; ++c)
        row[static_cast<std::size_t>(x * info.input_components + c)] = sample(y, x, c, state);
    JSAMPROW line = row.data();
    jpeg_write_scanlines(&info, &line, 1);
  }
  jpeg_finish_compress(&info);
  const Bytes out(data, data + size);
  jpeg_destroy_compress(&info);
  std::free(data);
  return out;
}

WholeImage decode_whole(const Bytes& jpeg, int space, int num) {
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  errors.error_exit = fail;
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, jpeg.data(), jpeg.size());
  jpeg_read_header(&info, TRUE);
  info.out_color_space = static_cast<J_COLOR_SPACE>(space);
  info.scale_num = static_cast<unsigned>(num);
  info.scale_denom = 8;
  jpeg_start_decompress(&info);
  WholeImage out{
      static_cast<int>(info.output_width), static_cast<int>(info.output_height), info.output_components, {}};
  const std::size_t stride = static_cast<std::size_t>(out.width * out.channels);
  out.pixels.resize(stride * static_cast<std::size_t>(out.height));
  while (info.output_scanline < info.output_height) {
    JSAMPROW row = out.pixels.data() + info.output_scanline * stride;
    jpeg_read_scanlines(&info, &row, 1);
  }
  jpeg_finish_decompress(&info);
  jpeg_destroy_decompress(&info);
  return out;
}

std::size_t find_marker(const Bytes& jpeg, std::uint8_t code, std::size_t from) {
  for (std::size_t i = from; i + 1 < jpeg.size(); ++i)
    if (jpeg[i] == 0xFF && jpeg[i + 1] == code) return i;
  throw std::runtime_error("no such marker");
}

}  // namespace lpsgd
