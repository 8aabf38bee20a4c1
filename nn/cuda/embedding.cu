// Embedding. In backward, one block for each token adds the gradients of all its positions, in order, so that
// the sum has the same bits in every run. It is the block of the token's first position. Each warp compares
// 32 positions at once, and only those that match are visited.
//
// Memory moved per value of b bytes, in single values of neighbouring threads: forward 4 (table) + b;
// backward b, and 8 (read and written) for each value of a token that occurs. Token numbers come from cache.
#include "nn/cuda/access_device.h"

namespace lpsgd::cuda {
namespace {

constexpr unsigned lanes = 32;

template <class T>
__global__ void embedding_kernel(const float* x, const float* table, T* y, std::int32_t* tokens, float* bad,
                                 std::int64_t count, std::int64_t vocabulary, std::int64_t width) {
  for (std::int64_t i = thread_number(); i < count * width; i += thread_count()) {
    const std::int64_t position = i / width, c = i % width;
    const float number = x[position];
    const bool there = number >= 0 && number < static_cast<float>(vocabulary);
    const auto token = there ? static_cast<std::int64_t>(number) : 0;
    if (c == 0) {
      tokens[position] = static_cast<std::int32_t>(token);
      // Any of them may be reported. A token that is a NaN is reported as -1.
      if (!there) *bad = number == number ? number : -1.0f;
    }
    y[i] = from_float<T>(table[token * width + c]);
  }
}

template <class T>
__global__ void embedding_gradient_kernel(const T* dy, const std::int32_t* tokens, float* gradient,
                                          std::int64_t count, std::int64_t width) {
  // Which positions of a chunk have the token, a bit each. Two, because the next chunk's are written while
  // slow warps still read.
  __shared__ unsigned matches[2][block_threads / lanes];
  const unsigned warp = threadIdx.x / lanes;
  int turn = 0;
  for (std::int64_t position = blockIdx.x; position < count; position += gridDim.x) {
    const std::int32_t token = tokens[position];
    bool again = false;
    for (std::int64_t i = threadIdx.x; i < position; i += block_threads) again = again || tokens[i] == token;
    if (__syncthreads_or(again)) continue;  // an earlier block adds them
    for (std::int64_t base = position; base < count; base += block_threads) {
      const std::int64_t mine = base + threadIdx.x;
      const bool matching = mine < count && tokens[mine] == token;
      const unsigned bits = __ballot_sync(0xffffffff, matching);
      turn ^= 1;
      if (threadIdx.x % lanes == 0) matches[turn][warp] = bits;
      if (__syncthreads_or(matching) == 0) continue;
      for (std::int64_t c = threadIdx.x; c < width; c += block_threads) {
        float sum = gradient[token * width + c];
        for (unsigned w = 0; w < block_threads / lanes; ++w)
          for (unsigned left = matches[turn][w]; left != 0; left &= left - 1)
            sum += as_float(dy[(base + lanes * w + __ffs(static_cast<int>(left)) - 1) * width + c]);
        gradient[token * width + c] = sum;
      }
    }
  }
}

}  // namespace

cudaError_t launch_embedding(DataType type, const float* x, const float* table, void* y, std::int32_t* tokens,
                             float* bad, std::int64_t count, std::int64_t vocabulary, std::int64_t width,
                             cudaStream_t stream) {
  return with_type(type, [&]<class T>(T) {
    LPSGD_LAUNCH(embedding_kernel<T>, blocks_for(count * width), block_threads, stream)
    (x, table, static_cast<T*>(y), tokens, bad, count, vocabulary, width);
  });
}

cudaError_t launch_embedding_gradient(DataType type, const void* dy, const std::int32_t* tokens,
                                      float* gradient, std::int64_t count, std::int64_t width,
                                      cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(count < 65536 ? count : 65536);
  return with_type(type, [&]<class T>(T) {
    LPSGD_LAUNCH(embedding_gradient_kernel<T>, blocks, block_threads, stream)
    (static_cast<const T*>(dy), tokens, gradient, count, width);
  });
}

}  // namespace lpsgd::cuda
