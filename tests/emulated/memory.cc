// CUDA's memory: the device's, page-locked memory of the host, and copies between them.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/emulated/machine.h"
#include "tests/emulated/streams.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes)
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes)
#endif

using namespace lpsgd::emulated;

HostCopies::HostCopies() {
  const std::lock_guard lock(machine().mutex);
  machine().notes_host_copies = true;
  machine().host_copies.clear();
}
HostCopies::~HostCopies() {
  const std::lock_guard lock(machine().mutex);
  machine().notes_host_copies = false;
}
std::vector<HostCopy> HostCopies::take() {
  const std::lock_guard lock(machine().mutex);
  return std::exchange(machine().host_copies, {});
}

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  if (invalidate_own_capture()) return fail(cudaErrorStreamCaptureUnsupported);
  if (bytes == 0) {
    *data = nullptr;
    return cudaSuccess;
  }
  if (bytes > m.memory - m.used || m.region_used + bytes + 2 * page > reserved)
    return fail(cudaErrorMemoryAllocation);
  if (m.region == nullptr) {
    void* all = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) return fail(cudaErrorMemoryAllocation);
    m.region = static_cast<std::byte*>(all);
    const int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    if (key >= 0 && pkey_mprotect(all, reserved, PROT_READ | PROT_WRITE, key) == 0) m.protection_key = key;
  }
  std::byte* const at = m.find_address(bytes);
  m.used += bytes;
  m.device[at] = bytes;
  ASAN_UNPOISON_MEMORY_REGION(at, bytes);
  ASAN_POISON_MEMORY_REGION(at + bytes, allocated_for(bytes) - bytes);
  if (bytes <= large) {
    const WorkScope scope;
    WorkScope::open_memory();
    std::memset(at, 0xff, bytes);  // a NaN of every type
  }
  *data = at;
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  if (data == nullptr) return cudaSuccess;
  const auto found = m.device.find(static_cast<std::byte*>(data));
  if (found == m.device.end()) return fail(cudaErrorInvalidValue);
  if (invalidate_own_capture()) return fail(cudaErrorStreamCaptureUnsupported);
  drain_all();
  madvise(data, (found->second + page - 1) / page * page, MADV_DONTNEED);
  ASAN_POISON_MEMORY_REGION(data, found->second);
  m.used -= found->second;
  m.device.erase(found);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* all) {
  const std::lock_guard lock(machine().mutex);
  *all = machine().memory;
  *free = machine().memory - machine().used;
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned) {
  const std::lock_guard lock(machine().mutex);
  if (invalidate_own_capture()) return fail(cudaErrorStreamCaptureUnsupported);
  *data = std::malloc(bytes);
  if (*data == nullptr) return fail(cudaErrorMemoryAllocation);
  machine().pinned[static_cast<std::byte*>(*data)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) {
  const std::lock_guard lock(machine().mutex);
  if (invalidate_own_capture()) return fail(cudaErrorStreamCaptureUnsupported);
  drain_all();
  machine().pinned.erase(static_cast<std::byte*>(data));
  std::free(data);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  Machine& m = machine();
  const std::lock_guard lock(m.mutex);
  CUstream_st& s = stream_of(stream);
  if (bytes == 0) return cudaSuccess;
  for (const void* end : {static_cast<const void*>(to), from})
    if (in_region(end) && !contains(m.device, end, bytes)) return fail(cudaErrorInvalidValue);
  const auto pageable = [&](const void* p) { return !in_region(p) && !contains(m.pinned, p, bytes); };
  if ((pageable(to) || pageable(from)) && invalidate_capture(s))
    return fail(cudaErrorStreamCaptureUnsupported);
  if (m.notes_host_copies && in_region(to) && !in_region(from))
    m.host_copies.push_back({from, bytes, !pageable(from)});
  // The host may change pageable memory as soon as the call returns, page-locked memory once it is copied.
  if (pageable(from)) {
    const auto* first = static_cast<const std::byte*>(from);
    push(s, {.work = [to, kept = std::vector<std::byte>(first, first + bytes)] {
           std::memcpy(to, kept.data(), kept.size());
         }});
  } else {
    push(s, {.work = [=] { std::memmove(to, from, bytes); }});
  }
  if (pageable(to)) drain(s);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  const std::lock_guard lock(machine().mutex);
  if (bytes == 0) return cudaSuccess;
  if (!contains(machine().device, to, bytes)) return fail(cudaErrorInvalidValue);
  return push(stream_of(stream), {.work = [=] {
                // Whole pages become 0 by returning them.
                auto* const first = static_cast<std::byte*>(to);
                const bool returns = value == 0 && bytes > large && (first - machine().region) % page == 0;
                const std::size_t pages = returns ? bytes / page * page : 0;
                if (returns) madvise(to, pages, MADV_DONTNEED);
                std::memset(first + pages, value, bytes - pages);
              }});
}
