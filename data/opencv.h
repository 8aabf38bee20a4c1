// OpenCV, as data/ uses it.
#pragma once

#include <cstdint>
#include <opencv2/core.hpp>

#include "core/error.h"

namespace lpsgd {

/// OpenCV has no pixels of more channels, and resizes by area no pixels of more than four.
inline constexpr std::int64_t most_opencv_channels = CV_CN_MAX, most_area_channels = 4;

/// OpenCV's type of pixels of `channels` bytes.
inline int opencv_type(std::int64_t channels) {
  require(channels >= 1 && channels <= most_opencv_channels, "OpenCV has pixels of so many channels");
  return CV_MAKETYPE(CV_8U, static_cast<int>(channels));
}

/// A view of pixels (rows, columns, channels), rows `stride` bytes apart, that OpenCV only reads: it has no
/// view of const bytes.
inline cv::Mat opencv_view(std::int64_t rows, std::int64_t columns, std::int64_t channels,
                           const std::uint8_t* data, std::size_t stride = cv::Mat::AUTO_STEP) {
  return {static_cast<int>(rows), static_cast<int>(columns), opencv_type(channels),
          const_cast<std::uint8_t*>(data), stride};
}

/// cv::imdecode. Its library brings some 140 others, which would slow the start of every command by 70 ms. So
/// it is loaded at the first call. Throws Error if that fails, which is no file's fault, and cv::Exception as
/// cv::imdecode does.
cv::Mat opencv_imdecode(cv::InputArray bytes, int flags, cv::Mat* into);

/// Whether libtiff, which goes on after damaged data, has found any on this thread since the last call.
bool take_tiff_error();

/// Keeps OpenCV to the calling thread: the loader's workers share the cores already.
void use_one_opencv_thread();

}  // namespace lpsgd
