// Calls a function for every sample, from several threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace lpsgd {

/// Calls body(thread, i) for i = first .. last - 1, from `threads` threads, numbered from 0, each of which
/// takes the next i. Rethrows the error of the lowest i that failed; some after it may have been left out.
inline void for_samples(std::int64_t first, std::int64_t last, int threads,
                        const std::function<void(int thread, std::int64_t i)>& body) {
  std::atomic<std::int64_t> next{first};
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(threads));
  std::vector<std::int64_t> failed(errors.size(), last);
  const auto work = [&](int thread) {
    const auto t = static_cast<std::size_t>(thread);
    for (std::int64_t i = next++; i < last; i = next++) {
      try {
        body(thread, i);
      } catch (...) {
        errors[t] = std::current_exception();
        failed[t] = i;
        next = last;
        return;
      }
    }
  };
  {
    std::vector<std::jthread> others;
    for (int t = 1; t < threads; ++t) others.emplace_back(work, t);
    work(0);
  }
  std::size_t lowest = 0;
  for (std::size_t t = 0; t < errors.size(); ++t)
    if (failed[t] < failed[lowest]) lowest = t;
  if (errors[lowest]) std::rethrow_exception(errors[lowest]);
}

}  // namespace lpsgd
