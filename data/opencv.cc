#include "data/opencv.h"

#include <dlfcn.h>

#include <opencv2/imgcodecs.hpp>

#include "core/error.h"

namespace lpsgd {

namespace {

using ImDecode = cv::Mat (*)(cv::InputArray, int, cv::Mat*);
constexpr ImDecode check_signature [[maybe_unused]] = cv::imdecode;

ImDecode load() {
  // The library stays loaded.
  void* library = dlopen(LPSGD_IMGCODECS, RTLD_NOW | RTLD_LOCAL);
  if (!library) throw Error(fmt::format("images other than JPEG need OpenCV's imgcodecs: {}", dlerror()));
  void* symbol = dlsym(library, "_ZN2cv8imdecodeERKNS_11_InputArrayEiPNS_3MatE");
  if (!symbol) throw Error(fmt::format("{} has no cv::imdecode: {}", LPSGD_IMGCODECS, dlerror()));
  return reinterpret_cast<ImDecode>(symbol);
}

}  // namespace

cv::Mat opencv_imdecode(cv::InputArray bytes, int flags, cv::Mat* into) {
  static const ImDecode imdecode = load();
  return imdecode(bytes, flags, into);
}

void use_one_opencv_thread() {
  static const bool once = (cv::setNumThreads(1), true);
  static_cast<void>(once);
}

}  // namespace lpsgd
