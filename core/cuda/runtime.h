// The functions of the CUDA runtime that core/ uses, without CUDA's headers. runtime.cc implements them. A
// build without the CUDA backend has absent.cc instead, whose functions throw DeviceError, except discover()
// and the releases. Releases never throw.
#pragma once

#include <cstddef>

#include "core/device.h"

struct CUgraphExec_st;  // cudaGraphExec_t

namespace lpsgd::cuda {

CudaDevices discover() noexcept;
CudaDeviceInfo device_info(int index);
int current_device();
void set_device(int index);
void restore_device(int index) noexcept;

CUstream_st* create_stream(StreamPriority priority);
void destroy_stream(CUstream_st* stream) noexcept;
void synchronize_stream(CUstream_st* stream);
void stream_wait(CUstream_st* stream, CUevent_st* event);

// Captures a stream and the streams that wait for its events; other streams are not affected. The graph keeps
// the streams' priorities.
void begin_capture(CUstream_st* stream);
void abandon_capture(CUstream_st* stream) noexcept;
CUgraphExec_st* end_capture(CUstream_st* stream);
bool is_capturing(CUstream_st* stream);
void launch_graph(CUgraphExec_st* graph, CUstream_st* stream);
void destroy_graph(CUgraphExec_st* graph) noexcept;

CUevent_st* create_event(bool timing, bool sleeps);
void destroy_event(CUevent_st* event) noexcept;
/// While the stream is being captured, an event with timing (`timed`) is recorded at each launch.
void record_event(CUevent_st* event, CUstream_st* stream, bool timed);
bool event_done(CUevent_st* event);
void synchronize_event(CUevent_st* event);
double event_seconds(CUevent_st* begin, CUevent_st* end);

void* allocate_device(std::size_t bytes);  // zeroed; of bytes rounded up to a multiple of 16
std::size_t free_memory();                 // of the current device; 0 if unknown
void free_device(void* data) noexcept;
void* allocate_pinned(std::size_t bytes);  // not zeroed
void free_pinned(void* data) noexcept;
void copy(void* to, const void* from, std::size_t bytes, CUstream_st* stream);
void zero(void* to, std::size_t bytes, CUstream_st* stream);

}  // namespace lpsgd::cuda
