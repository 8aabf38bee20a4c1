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

/// Remembers an error for cudaGetLastError(), and gives it back.
cudaError_t fail(cudaError_t error);

/// Queues work on a stream, or adds it to the graph that is recorded from it. Work that tells by `same` that
/// it writes what the work just done has written, from the same memory, is not done again: to measure an
/// algorithm is to repeat it.
cudaError_t queue(cudaStream_t stream, std::function<void()> work, std::vector<std::int64_t> same = {});
/// Does what the stream has been given.
cudaError_t finish(cudaStream_t stream);
bool is_recorded(cudaStream_t stream);

/// Whether all `bytes` are device memory, for checks of arguments.
bool is_device_memory(const void* at, std::size_t bytes);

}  // namespace lpsgd::emulated
