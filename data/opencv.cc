#include "data/opencv.h"

#include <dlfcn.h>

#include <cstdarg>
#include <opencv2/imgcodecs.hpp>
#include <utility>

#include "core/error.h"

namespace lpsgd {

namespace {

// Its signature, without a use that would link the library.
using ImDecode = decltype(static_cast<cv::Mat (*)(cv::InputArray, int, cv::Mat*)>(cv::imdecode));

thread_local bool tiff_error = false;

ImDecode load() {
  // The library stays loaded.
  void* library = dlopen(LPSGD_IMGCODECS, RTLD_NOW | RTLD_LOCAL);
  if (!library)
    throw Error(fmt::format("images other than JPEG and PNG need OpenCV's imgcodecs: {}", dlerror()));
  // libtiff comes with it, unless it was built without. OpenCV sets the other handler, which prints.
  using Handler = void (*)(void*, const char*, const char*, va_list);
  using SetHandler = Handler (*)(Handler);
  if (void* set = dlsym(library, "TIFFSetErrorHandlerExt"))
    reinterpret_cast<SetHandler>(set)([](void*, const char*, const char*, va_list) { tiff_error = true; });
  void* symbol = dlsym(library, "_ZN2cv8imdecodeERKNS_11_InputArrayEiPNS_3MatE");
  if (!symbol) throw Error(fmt::format("{} has no cv::imdecode: {}", LPSGD_IMGCODECS, dlerror()));
  return reinterpret_cast<ImDecode>(symbol);
}

}  // namespace

cv::Mat opencv_imdecode(cv::InputArray bytes, int flags, cv::Mat* into) {
  static const ImDecode imdecode = load();
  return imdecode(bytes, flags, into);
}

bool take_tiff_error() {
  return std::exchange(tiff_error, false);
}

void use_one_opencv_thread() {
  static const bool once = (cv::setNumThreads(1), true);
  static_cast<void>(once);
}

}  // namespace lpsgd
