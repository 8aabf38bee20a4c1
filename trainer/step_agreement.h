// What the ranks must do after one and the same step: save because rank 0's clock says so, or end because a
// signal has reached one of them. And whether they may go on with a checkpoint that is being written.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/transport.h"

namespace lpsgd {

/// What one rank says, and what all agree on.
struct Agreed {
  int signal = 0;     // that the rank has caught, 0: none; the largest of all
  bool save = false;  // rank 0's
  bool busy = false;  // with writing a checkpoint; any rank's
};

/// The ranks ask each other after steps that are known beforehand, about once in `seconds`. When they do,
/// rank 0 also says after how many steps they ask next: as many as take `seconds`, at the speed of those
/// since the last time, but at most twice as many as before. In all other steps nothing is sent, and no step
/// waits for a GPU. Asking is an all_gather of a few bytes between hosts. It waits for an exchange that goes
/// on beside steps, so meanwhile the ranks put it off: at most to ten times as many steps, and for about half
/// a minute.
class StepAgreement {
 public:
  explicit StepAgreement(Transport& transport, double seconds = 1);

  /// Counts a step, which ended at `now`, and asks if this is one of the agreed. Collective, with the same
  /// number of calls on every rank.
  /// Nothing without asking: no signal, no saving, and busy. `exchanging`: whether an exchange goes on, on
  /// all ranks alike.
  Agreed after_step(double now, const Agreed& mine, bool exchanging = false);
  /// Asks at once. Collective.
  Agreed ask(double now, const Agreed& mine) { return gather(now, mine, interval_, latest_); }
  /// Asks again after the next step, and from there on less often, as at the start. Called on all ranks after
  /// the same step.
  void ask_soon() { interval_ = latest_ = 1; }
  /// The next step begins at `now`.
  void restart(double now);

  /// After so many steps from the last time the ranks ask again.
  std::int64_t interval() const { return interval_; }

 private:
  struct Message {
    std::int64_t signal = 0, save = 0, busy = 0, interval = 1, latest = 1;
  };
  Agreed gather(double now, const Agreed& mine, std::int64_t next, std::int64_t latest);

  Transport& transport_;
  const double seconds_;
  std::vector<Message> messages_;  // of all ranks
  std::int64_t interval_ = 1, latest_ = 1, steps_ = 0;
  double since_ = 0;
};

}  // namespace lpsgd
