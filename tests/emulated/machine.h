// The emulated GPU, as its parts see it. Work that a stream is given waits in the stream's queue, and is done
// as late as CUDA's rules allow: when the host waits for it, or work that must come after it. What reads
// something without having waited for it therefore reads what was there before, and what overwrites
// something too early is seen by its readers. LPSGD_EMULATED_ORDER=SEED lets streams go ahead at random
// instead.
//
// Device memory cannot be read by the host but from within such work.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace lpsgd::emulated {

/// Ends the program: what it asked for is undefined on a GPU.
[[noreturn]] void undefined(const char* what);

/// Remembers an error for cudaGetLastError(), and gives it back. The strictest reading: one that only says
/// "not yet" is remembered, too.
cudaError_t fail(cudaError_t error);
/// Tells the error remembered, and forgets it.
cudaError_t last();

/// Queues work on a stream, or adds it to the graph that is captured from it. Work that tells by `same` that
/// it writes what the work just done has written, from the same memory, is not done again: to measure an
/// algorithm is to repeat it.
cudaError_t queue(cudaStream_t stream, std::function<void()> work, std::vector<std::int64_t> same = {});
/// Adds work to the graph that is captured from the stream, on which other ranks wait: it is done, with what
/// it needs before it, when the graph is launched.
cudaError_t queue_at_once(cudaStream_t stream, std::function<void()> work);
/// As queue(), for a launch, which must go to a stream of the current device.
cudaError_t queue_kernel(cudaStream_t stream, std::function<void()> work);
/// Runs `work` now, with device memory open to it.
void touch(const std::function<void()>& work);
/// Does what the stream has been given.
cudaError_t finish(cudaStream_t stream);
bool is_captured(cudaStream_t stream);
int device_of(cudaStream_t stream);

/// Whether all `bytes` are device memory, for checks of arguments.
bool is_device_memory(const void* at, std::size_t bytes);
/// For results that are written while operands are read.
inline bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto* p = static_cast<const std::byte*>(a);
  const auto* q = static_cast<const std::byte*>(b);
  return p < q + b_bytes && q < p + a_bytes;
}

}  // namespace lpsgd::emulated
