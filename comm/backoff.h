// Waiting that leaves the core to others: the first pauses yield, later ones sleep some tens of microseconds,
// so that ranks, communication threads and compute threads that share a core do not hold each other up.
#pragma once

namespace lpsgd {

class Backoff {
 public:
  /// Yields, or sleeps 20 to 50 microseconds once `yields` pauses were in vain. Returns whether it slept.
  bool pause();
  /// Something has moved: begin with yields again.
  void reset() { pauses_ = 0; }

 private:
  static constexpr int yields = 64;
  int pauses_ = 0;
};

/// Lets this thread's short sleeps end when they should (Linux adds 50 microseconds by default).
void prefer_short_sleeps();

}  // namespace lpsgd
