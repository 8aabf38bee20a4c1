// Limits of waiting for other ranks: what is logged meanwhile, and how a wait that lasts too long ends.
#pragma once

#include <atomic>
#include <memory>
#include <string>

namespace lpsgd {

class Transport;

struct Limit {
  double seconds = 0;     // without progress; 0: none
  const char* name = "";  // what sets it: a key of the configuration, or an environment variable
};

/// A wait for other ranks, which the caller polls. Time in which this process was stopped does not count.
class Patience {
 public:
  explicit Patience(Limit limit);
  /// After progress: the wait begins anew.
  void reset() { waited_ = last_ = 0, next_ = period_; }
  /// Whether report() is due: every 30 seconds, or four times within the limit if that is shorter, and at the
  /// limit. Measures the time, so call it in every round.
  bool due();
  bool is_over() const { return limit_.seconds > 0 && waited_ >= limit_.seconds; }
  double waited() const { return waited_; }  // seconds
  double period() const { return period_; }
  /// Logs `text`, which says what waits how long for whom. At the limit calls the transport's timed_out() and
  /// cancel(), and throws CommError.
  void report(Transport& transport, const std::string& text);

 private:
  Limit limit_;
  double period_, next_;
  double waited_ = 0, last_ = 0;
};

/// Prints an error, not through stdio, of which another thread may hold the lock.
void print_error(const std::string& message) noexcept;

/// Ends this process with status 1 in so many seconds, for when ending in order may hang. Then prints
/// `message` if it is not empty; until then logs `meanwhile` as Patience does. A later call replaces it.
void end_process_in(double seconds, const std::string& message, const std::string& meanwhile = {}) noexcept;
/// Takes that back.
void let_process_live() noexcept;

/// Ends the process as end_process_in() does, unless it is destroyed before. Ranks that are threads of one
/// process each have one of their own.
class ScopedProcessEnd {
 public:
  ScopedProcessEnd(double seconds, const std::string& message) noexcept;
  ~ScopedProcessEnd();
  ScopedProcessEnd(const ScopedProcessEnd&) = delete;
  ScopedProcessEnd& operator=(const ScopedProcessEnd&) = delete;

 private:
  std::shared_ptr<std::atomic<bool>> is_over_;
};

/// Ranks that end together report one after the other, so that the first one's message is the only one: the
/// launcher ends the others before their turn. They leave a while to a rank with an error of its own, such as
/// a StalledError.
double seconds_until_turn(int rank);
/// Waits for this rank's turn. SIGTERM, with which Open MPI's launcher ends a job, ends the process at once
/// then.
void await_turn(int rank) noexcept;

}  // namespace lpsgd
