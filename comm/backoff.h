// Waiting that leaves the core to others: some yields, then sleeps that grow from 5 to 200 microseconds.
// Where the core computes there are no yields: a thread that yields is put behind a compute thread for
// milliseconds, while one that slept a moment runs as soon as it wakes (ResNet-50 over 1 Gbit/s, a core a
// rank: a tenth of the step).
#pragma once

namespace lpsgd {

class Backoff {
 public:
  void pause();
  /// Something has moved: wait little again. That the core computes is remembered for a while.
  void reset() { yields_ = most_yields, nanoseconds_ = shortest; }

 private:
  static constexpr int most_yields = 64;
  static constexpr long shortest = 5'000;
  int yields_ = most_yields;
  long nanoseconds_ = shortest;
  double crowded_until_ = 0;
};

/// Lets this thread's short sleeps end when they should (Linux adds 50 microseconds by default).
void prefer_short_sleeps();

}  // namespace lpsgd
