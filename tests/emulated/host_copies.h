// The copies from the host to the emulated GPU, for tests that count them.
#pragma once

#include <cstddef>
#include <vector>

namespace lpsgd::emulated {

/// A call that copies from the host to a device.
struct HostCopy {
  const void* from;
  std::size_t bytes;
  bool page_locked;
};

/// Notes every such call of the process while it exists. One at a time.
class HostCopies {
 public:
  HostCopies();
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;
  /// Those since the last call.
  std::vector<HostCopy> take();
};

}  // namespace lpsgd::emulated
