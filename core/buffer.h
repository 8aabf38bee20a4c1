// Host memory with one owner. std::span<T> is the view of it.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <type_traits>

namespace lpsgd {

/// Owns `size` values of T in host memory, zeroed and aligned to 64 bytes. Can be moved, not copied. Large
/// buffers are aligned to 2 MiB and use huge pages where the kernel grants them: fewer TLB misses, and far
/// fewer page faults in virtual machines that back memory lazily.
template <class T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Buffer() = default;
  explicit Buffer(std::size_t size) : size_(size) {
    const std::size_t bytes = size * sizeof(T);
    const std::size_t alignment = bytes >= huge_page ? huge_page : cache_line;
    const std::size_t rounded = bytes == 0 ? alignment : (bytes + alignment - 1) / alignment * alignment;
    data_ = {static_cast<T*>(::operator new(rounded, std::align_val_t{alignment})), Free{alignment}};
    if (alignment == huge_page) ::madvise(static_cast<void*>(data_.get()), rounded, MADV_HUGEPAGE);
    std::memset(static_cast<void*>(data_.get()), 0, rounded);
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  operator std::span<T>() { return {data(), size_}; }              // NOLINT(google-explicit-constructor)
  operator std::span<const T>() const { return {data(), size_}; }  // NOLINT(google-explicit-constructor)
  std::span<T> view() { return {data(), size_}; }
  std::span<const T> view() const { return {data(), size_}; }

 private:
  static constexpr std::size_t cache_line = 64;
  static constexpr std::size_t huge_page = std::size_t{1} << 21;

  struct Free {
    std::size_t alignment = cache_line;
    void operator()(T* p) const { ::operator delete(p, std::align_val_t{alignment}); }
  };
  std::unique_ptr<T[], Free> data_;
  std::size_t size_ = 0;
};

}  // namespace lpsgd
