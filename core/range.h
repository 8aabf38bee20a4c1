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

}  // namespace lpsgd
