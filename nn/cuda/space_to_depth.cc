#include "nn/cuda/space_to_depth.h"

namespace lpsgd::cuda {
namespace {

constexpr std::int64_t most_channels = 4;
constexpr int multiple = 8;  // of a block's channels

std::int64_t up(std::int64_t n, std::int64_t by) {
  return (n + by - 1) / by;
}

}  // namespace

bool has_blocks(const ConvProblem& p) {
  return p.pass != ConvPass::input_gradient && p.groups == 1 && p.in[2] <= most_channels &&
         p.stride.h * p.stride.w > 1 && p.kernel.h >= p.stride.h && p.kernel.w >= p.stride.w;
}

BlockShape blocks_of(const ConvProblem& p) {
  BlockShape s;
  s.batch = p.batch;
  s.h = static_cast<int>(p.in[0]), s.w = static_cast<int>(p.in[1]), s.c = static_cast<int>(p.in[2]);
  s.stride_h = static_cast<int>(p.stride.h), s.stride_w = static_cast<int>(p.stride.w);
  s.pad_h = static_cast<int>(p.pad.h), s.pad_w = static_cast<int>(p.pad.w);
  s.kernel_h = static_cast<int>(p.kernel.h), s.kernel_w = static_cast<int>(p.kernel.w);
  s.window_h = static_cast<int>(up(p.kernel.h, p.stride.h));
  s.window_w = static_cast<int>(up(p.kernel.w, p.stride.w));
  s.rows = static_cast<int>(p.out[0]) + s.window_h - 1;
  s.columns = static_cast<int>(p.out[1]) + s.window_w - 1;
  s.channels = static_cast<int>(up(s.stride_h * s.stride_w * s.c, multiple)) * multiple;
  s.filters = p.out[2];
  return s;
}

ConvProblem in_blocks(const ConvProblem& problem) {
  const BlockShape s = blocks_of(problem);
  ConvProblem out = problem;
  out.in = {s.rows, s.columns, s.channels};
  out.kernel = {s.window_h, s.window_w};
  out.stride = {1, 1};
  out.pad = {0, 0};
  return out;
}

}  // namespace lpsgd::cuda
