// A strided convolution as matrix products over rows of input pixels. The pixels that a position of the
// window reads are first copied together (im2col, for one position at a time).
#pragma once

#include "nn/cpu/context.h"

namespace lpsgd::cpu {

/// For float32 in NHWC, with weights in the layout of the arena. Where is_profitable(), oneDNN 2.6's strided
/// convolutions reach only half to two thirds of the speed of its matrix products.
class Im2colProducts {
 public:
  static bool is_profitable(const Binding& b, const ConvDesc& desc);

  Im2colProducts(Context& context, const Binding& b, const ConvDesc& desc);
  /// forward() is only for windows of one pixel.
  bool has_forward() const { return window_.h == 1 && window_.w == 1; }
  /// y = x W^T.
  void forward() const;
  /// dw = dy^T x, summed over the pixels. Each position of the window has its own pixels x.
  void weight_gradient() const;

 private:
  template <class Body>
  void each_part(const Body& body) const;
  void fill_im2col(std::int64_t first, std::int64_t last, Size2 position) const;

  Context& context_;
  Binding b_;
  Size2 window_, stride_, pad_;
  std::int64_t in_ = 0, out_ = 0;  // channels
  std::int64_t lines_ = 0;         // of output pixels, in the whole batch
  std::int64_t lines_per_part_ = 1;
  dnnl::memory im2col_;  // (lines_per_part, width, in): the input pixels of a part
};

}  // namespace lpsgd::cpu
