// Softmax cross-entropy, as in nn/cpu/loss.cc: exponentials in float32, their sums and the loss in double.
// Each block computes a row; one more block adds the rows.
//
// Memory moved per logit of b bytes, in single values of neighbouring threads: forward b (the second reading
// is from cache), backward 2 b. Rows have any number of classes, so they are not aligned.
#include "nn/cuda/access_device.h"
#include "nn/maths_device.h"

namespace lpsgd::cuda {
namespace {

constexpr int row_threads = 128;

/// The block's result of `join` over v, on all threads.
template <class V, class Join>
__device__ V over_block(V v, const Join& join) {
  __shared__ V shared[row_threads];
  __syncthreads();
  shared[threadIdx.x] = v;
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) shared[threadIdx.x] = join(shared[threadIdx.x], shared[threadIdx.x + half]);
  }
  __syncthreads();
  return shared[0];
}

template <class T>
__global__ void __launch_bounds__(row_threads)
    loss_kernel(const T* logits, const std::int32_t* labels, LossRow* rows, std::int64_t count,
                std::int64_t classes, double smoothing) {
  for (std::int64_t row = blockIdx.x; row < count; row += gridDim.x) {
    const std::int32_t label = labels[row];
    if (label < 0) {
      if (threadIdx.x == 0) rows[row] = {0, 1, 0, 0};
      continue;
    }
    const T* z = logits + row * classes;
    const float at_label = as_float(z[label]);
    float max = at_label;
    for (std::int64_t c = threadIdx.x; c < classes; c += row_threads) max = fmaxf(max, as_float(z[c]));
    max = over_block(max, [](float a, float b) { return fmaxf(a, b); });
    double sum = 0, scores = 0;
    long long before = 0;  // classes that rank before the label
    for (std::int64_t c = threadIdx.x; c < classes; c += row_threads) {
      const float x = as_float(z[c]);
      sum += static_cast<double>(maths::exp<maths::One>(x - max));
      if (smoothing > 0) scores += static_cast<double>(x) - static_cast<double>(max);
      before += x > at_label || (x == at_label && c < label);
    }
    sum = over_block(sum, [](double a, double b) { return a + b; });
    before = over_block(before, [](long long a, long long b) { return a + b; });
    if (smoothing > 0) scores = over_block(scores, [](double a, double b) { return a + b; });
    if (threadIdx.x == 0) {
      // A NaN ranks below every other score.
      const bool number = at_label == at_label;
      double target = static_cast<double>(at_label) - static_cast<double>(max);
      if (smoothing > 0)
        target = (1 - smoothing) * target + smoothing * (scores / static_cast<double>(classes));
      const double loss = log(sum) - target;
      rows[row] = {loss, sum, max, (number && before < 1 ? 1 : 0) | (number && before < 5 ? 2 : 0)};
    }
  }
}

__global__ void __launch_bounds__(row_threads)
    loss_sums_kernel(const LossRow* rows, const std::int32_t* labels, std::int64_t count, LossSums* sums) {
  LossSums mine;
  for (std::int64_t row = threadIdx.x; row < count; row += row_threads) {
    mine.loss += rows[row].loss;
    mine.top1 += rows[row].hits & 1;
    mine.top5 += rows[row].hits >> 1;
    mine.scored += labels[row] >= 0;
  }
  const double loss = over_block(mine.loss, [](double a, double b) { return a + b; });
  const auto add = [](long long a, long long b) { return a + b; };
  const long long top1 = over_block(mine.top1, add), top5 = over_block(mine.top5, add);
  const long long scored = over_block(mine.scored, add);
  if (threadIdx.x != 0) return;
  sums->loss += loss;
  sums->top1 += top1;
  sums->top5 += top5;
  sums->scored += scored;
}

template <class T>
__global__ void loss_gradient_kernel(const T* logits, const std::int32_t* labels, const LossRow* rows,
                                     const PassState* pass, T* gradient, std::int64_t count,
                                     std::int64_t classes, double smoothing) {
  const double divisor = pass->loss_divisor;
  const double share = smoothing / static_cast<double>(classes);
  const auto shift = static_cast<float>(share / divisor);
  for (std::int64_t row = blockIdx.x; row < count; row += gridDim.x) {
    const std::int32_t label = labels[row];
    const LossRow of = rows[row];
    const T* z = logits + row * classes;
    T* g = gradient + row * classes;
    const auto scale = static_cast<float>(1 / (of.sum * divisor));
    for (std::int64_t c = threadIdx.x; c < classes; c += row_threads) {
      if (label < 0) {
        g[c] = from_float<T>(0.0f);
      } else if (c == label) {
        const double p = exp(static_cast<double>(as_float(z[c])) - static_cast<double>(of.max)) / of.sum;
        g[c] = from_float<T>(static_cast<float>((p - (1 - smoothing) - share) / divisor));
      } else {
        g[c] = from_float<T>(maths::exp<maths::One>(as_float(z[c]) - of.max) * scale - shift);
      }
    }
  }
}

unsigned row_blocks(std::int64_t count) {
  return static_cast<unsigned>(count < 65536 ? count : 65536);
}

}  // namespace

cudaError_t launch_loss(DataType type, const void* logits, const std::int32_t* labels, LossRow* rows,
                        std::int64_t count, std::int64_t classes, double smoothing, LossSums* sums,
                        cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    LPSGD_LAUNCH(loss_kernel<T>, row_blocks(count), row_threads, stream)
    (static_cast<const T*>(logits), labels, rows, count, classes, smoothing);
    LPSGD_LAUNCH(loss_sums_kernel, 1, row_threads, stream)(rows, labels, count, sums);
  });
}

cudaError_t launch_loss_gradient(DataType type, const void* logits, const std::int32_t* labels,
                                 const LossRow* rows, const PassState* pass, void* gradient,
                                 std::int64_t count, std::int64_t classes, double smoothing,
                                 cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    LPSGD_LAUNCH(loss_gradient_kernel<T>, row_blocks(count), row_threads, stream)
    (static_cast<const T*>(logits), labels, rows, pass, static_cast<T*>(gradient), count, classes, smoothing);
  });
}

}  // namespace lpsgd::cuda
