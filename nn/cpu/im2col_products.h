// A strided convolution's passes as products over rows of pixels, gathered for one tap of the window after
// the other.
#pragma once

#include "nn/cpu/context.h"

namespace lpsgd::cpu {

/// On float32 in NHWC, with weights in the arena's layout. oneDNN 2.6's strided kernels over NHWC reach half
/// to two thirds of its products' speed where these are used.
class Im2colProducts {
 public:
  static bool pay(const Binding& b, const ConvDesc& desc);

  Im2colProducts(Context& context, const Binding& b, const ConvDesc& desc);
  bool has_forward() const { return window_.h == 1 && window_.w == 1; }
  /// Windows of one pixel only: y = x W^T.
  void forward() const;
  /// dw = dy^T x, summed over the pixels; each tap of the window takes its own pixels of x.
  void weight_gradient() const;

 private:
  template <class Body>
  void parts(const Body& body) const;
  void gather(std::int64_t first, std::int64_t last, Size2 tap) const;

  Context& context_;
  Binding b_;
  Size2 window_, stride_, pad_;
  std::int64_t in_ = 0, out_ = 0;  // channels
  std::int64_t lines_ = 0;         // of output pixels, of the whole batch
  std::int64_t lines_a_part_ = 1;
  dnnl::memory gathered_;  // the pixels of a part, (lines, width, in)
};

}  // namespace lpsgd::cpu
