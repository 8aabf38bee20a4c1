#include "data/image_decoder.h"

#include <limits>
#include <opencv2/imgcodecs.hpp>
#include <opencv2/imgproc.hpp>
#include <optional>

#include "core/error.h"
#include "data/image_header.h"
#include "data/jpeg.h"
#include "data/opencv.h"
#include "data/png.h"

namespace lpsgd {

namespace {

Pixels pixels_of(const cv::Mat& image) {
  return {image.rows, image.cols, image.channels(), static_cast<std::ptrdiff_t>(image.step[0]), image.data};
}

}  // namespace

struct ImageDecoder::Impl {
  explicit Impl(std::int64_t wanted) : channels(wanted), jpeg(wanted) { use_one_opencv_thread(); }

  std::int64_t channels;
  JpegDecoder jpeg;
  PngDecoder png;
  bool is_jpeg_file = false;
  cv::Mat image;  // of a file that is no JPEG: upright; blue, green, red
  cv::Mat flipped, turned, colours;

  void read_other(std::span<const std::uint8_t> bytes, const std::string& name) {
    image.release();  // cv::imdecode would leave it as it is if it cannot read the header
    const ImageHeader header = read_image_header(bytes, name);
    if (header.format == std::string_view("PNG")) {
      const Pixels stored = png.decode(bytes, name);
      image = upright(stored, png.orientation());
      return;
    }
    if (bytes.size() > std::numeric_limits<int>::max())
      throw FileError(fmt::format("{}: a file of {} bytes is too large for an image", name, bytes.size()));
    take_tiff_error();
    try {
      const cv::Mat in = opencv_view(1, static_cast<std::int64_t>(bytes.size()), 1, bytes.data());
      image = opencv_imdecode(in, cv::IMREAD_COLOR, &image);
    } catch (const cv::Exception& error) {
      image.release();
      throw FileError(fmt::format("{}: the {} image cannot be decoded: {}", name, header.format, error.err));
    }
    if (image.empty() || image.type() != opencv_type(3) || take_tiff_error())
      throw FileError(
          fmt::format("{}: the {} image is damaged, truncated or of an unknown kind", name, header.format));
  }

  cv::Mat upright(const Pixels& stored, int orientation) {
    const Orientation turn(orientation);
    const cv::Mat in = opencv_view(stored.height, stored.width, stored.channels, stored.data,
                                   static_cast<std::size_t>(stored.stride));
    const bool flips = turn.flip_x || turn.flip_y;
    if (flips) cv::flip(in, flipped, turn.flip_x && turn.flip_y ? -1 : turn.flip_x ? 1 : 0);
    if (!turn.transposed) return flips ? flipped : in;
    cv::transpose(flips ? flipped : in, turned);
    return turned;
  }

  Pixels part(const Box& box) {
    const cv::Mat part = image(cv::Rect(static_cast<int>(box.left), static_cast<int>(box.top),
                                        static_cast<int>(box.width), static_cast<int>(box.height)));
    cv::cvtColor(part, colours, channels == 1 ? cv::COLOR_BGR2GRAY : cv::COLOR_BGR2RGB);
    return pixels_of(colours);
  }
};

ImageDecoder::ImageDecoder(std::int64_t channels) : impl_(std::make_unique<Impl>(channels)) {
  require(channels == 1 || channels == 3, "image files give 1 or 3 channels");
}

ImageDecoder::~ImageDecoder() = default;

void ImageDecoder::open(std::span<const std::uint8_t> bytes, const std::string& name) {
  impl_->is_jpeg_file = is_jpeg(bytes);
  if (impl_->is_jpeg_file)
    impl_->jpeg.open(bytes, name);
  else
    impl_->read_other(bytes, name);
}

std::int64_t ImageDecoder::width() const {
  if (!impl_->is_jpeg_file) return impl_->image.cols;
  return Orientation(impl_->jpeg.orientation()).transposed ? impl_->jpeg.height() : impl_->jpeg.width();
}

std::int64_t ImageDecoder::height() const {
  if (!impl_->is_jpeg_file) return impl_->image.rows;
  return Orientation(impl_->jpeg.orientation()).transposed ? impl_->jpeg.width() : impl_->jpeg.height();
}

bool ImageDecoder::is_grey_jpeg() const {
  return impl_->is_jpeg_file && impl_->jpeg.components() == 1;
}

Pixels ImageDecoder::decode(const Box& box, std::int64_t out_height, std::int64_t out_width) {
  Impl& impl = *impl_;
  if (!impl.is_jpeg_file) return impl.part(box);
  const int orientation = impl.jpeg.orientation();
  if (orientation == 1) return impl.jpeg.decode(box, out_height, out_width);
  if (Orientation(orientation).transposed) std::swap(out_height, out_width);
  const Box stored = stored_box(box, orientation, impl.jpeg.width(), impl.jpeg.height());
  return pixels_of(impl.upright(impl.jpeg.decode(stored, out_height, out_width), orientation));
}

}  // namespace lpsgd
