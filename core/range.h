// Names a part of a thread's work for NVIDIA's profilers (NVTX). Does nothing in a build without CUDA.
#pragma once

namespace lpsgd {

/// The range lasts as long as the object.
class ScopedRange {
 public:
  explicit ScopedRange(const char* name);
  ~ScopedRange();  // NOLINT(performance-trivially-destructible): not in a build with CUDA
  ScopedRange(const ScopedRange&) = delete;
  ScopedRange& operator=(const ScopedRange&) = delete;
};

/// Runs work() as a range and returns its result.
template <class Work>
auto in_range(const char* name, const Work& work) {
  const ScopedRange range(name);
  return work();
}

}  // namespace lpsgd
