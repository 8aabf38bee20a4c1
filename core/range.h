// A named stretch of a thread's work, seen by NVIDIA's profilers (NVTX). Nothing in a build without CUDA.
#pragma once

namespace lpsgd {

class ScopedRange {
 public:
  explicit ScopedRange(const char* name);
  ~ScopedRange();
  ScopedRange(const ScopedRange&) = delete;
  ScopedRange& operator=(const ScopedRange&) = delete;
};

/// work(), as a range.
template <class Work>
auto in_range(const char* name, const Work& work) {
  const ScopedRange range(name);
  return work();
}

}  // namespace lpsgd
