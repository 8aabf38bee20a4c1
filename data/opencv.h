// OpenCV, as data/ uses it.
#pragma once

#include <opencv2/core.hpp>

namespace lpsgd {

/// cv::imdecode. Its library brings some 140 others, which would slow the start of every command by 70 ms. So
/// it is loaded at the first call. Throws FileError if that fails, cv::Exception as cv::imdecode does.
cv::Mat opencv_imdecode(cv::InputArray bytes, int flags, cv::Mat* into);

/// Keeps OpenCV to the calling thread: the loader's workers share the cores already.
void use_one_opencv_thread();

}  // namespace lpsgd
