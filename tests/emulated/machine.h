// The emulated GPU, as its libraries use it. Work waits in its stream's queue and runs as late as CUDA's
// rules allow: when the host waits for it, or for work that must come after it. A read that does not wait for
// a write therefore reads the old values, and a write that does not wait for a read changes what is read.
//
// LPSGD_EMULATED_ORDER=SEED lets work run earlier: each task starts after a random delay, so that any order
// CUDA allows can occur.
//
// The host can access device memory only within such work.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace lpsgd::emulated {

/// Ends the program, after an operation that is undefined on a GPU.
[[noreturn]] void undefined(const char* what);

/// Stores an error for cudaGetLastError(), and returns it. This is the strictest reading of CUDA:
/// cudaErrorNotReady is stored, too.
cudaError_t fail(cudaError_t error);
/// Returns the stored error and clears it.
cudaError_t last();

/// Queues work on a stream, or adds it to the graph that is captured from it. `key` is for algorithms that
/// are measured by running them several times: work is skipped if the work before it had the same key,
/// because it writes the same values to the same memory.
cudaError_t queue(cudaStream_t stream, std::function<void()> work, std::vector<std::int64_t> key = {});
/// Adds work that other ranks wait for to the graph that is captured from the stream. It runs, after the work
/// it depends on, as soon as the graph is launched.
cudaError_t queue_eager(cudaStream_t stream, std::function<void()> work);
/// As queue(), for a kernel launch, which must go to a stream of the current device.
cudaError_t queue_kernel(cudaStream_t stream, std::function<void()> work);
/// Runs `work` now, with access to device memory.
void run_now(const std::function<void()>& work);
/// Runs all work queued on the stream.
cudaError_t synchronize(cudaStream_t stream);
bool is_captured(cudaStream_t stream);
int device_of(cudaStream_t stream);

/// The seconds that a test asks for: of `number` in a variable of the environment such as "5=0.3,6=0.01".
double delay_of(const char* variable, int number);
/// Work that takes so long, and does nothing.
void queue_delay(cudaStream_t stream, double seconds);

/// Whether all `bytes` are device memory, for checks of arguments.
bool is_device_memory(const void* at, std::size_t bytes);
/// Whether two ranges overlap, for results that must not be written over operands.
inline bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto* p = static_cast<const std::byte*>(a);
  const auto* q = static_cast<const std::byte*>(b);
  return p < q + b_bytes && q < p + a_bytes;
}

}  // namespace lpsgd::emulated
