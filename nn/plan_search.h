// Which of several algorithms for one operation is fastest on this machine: a search within a budget of time,
// and the choices of earlier runs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lpsgd {

/// The search for one operation. Its clock starts when the first candidate is measured: to load libraries and
/// to find candidates takes longest for the first operations, and must not leave them without a choice.
class PlanSearch {
 public:
  /// Seconds of a clock that never goes back.
  using Clock = std::function<double()>;
  /// `latest_seconds`: after them the search ends even if it measured fewer than three candidates.
  PlanSearch(double budget_seconds, double latest_seconds, Clock clock);

  /// Whether to try no more candidates, asked when there is one more: the budget is used up and three were
  /// measured, or the latest end has passed and one was.
  bool over();
  /// A candidate cannot be measured now, but may be another time: there is no room for it.
  void leave_out() { left_out_ = true; }
  /// Whether over() ended it before three were measured, or one was left out. Such a choice is not worth
  /// keeping.
  bool cut_off() const { return cut_off_ || left_out_; }

  struct Result {
    double seconds = 0;  // of one run; the fastest of those that were timed
    int runs = 0;
    bool dropped = false;  // a run took more than twice the fastest candidate's time
    bool fastest = false;  // of the candidates so far
    bool refused = false;  // it would be the fastest; it does not count as measured
  };
  /// Measures the next candidate. run(n) runs it n times and returns the seconds of one. A candidate slower
  /// than the budget runs once, and one whose second run is far behind the fastest (1.3 times its time and 20
  /// us) twice. accept(), if there is one, is asked whether a candidate that would be the fastest may be
  /// taken. What they throw is passed on.
  Result measure(const std::function<double(int)>& run, const std::function<bool()>& accept = {});

 private:
  Clock clock_;
  double budget_, latest_;
  std::optional<double> begin_;
  int measured_ = 0;
  bool cut_off_ = false, left_out_ = false;
  std::optional<double> fastest_;
};

/// With these seconds, for all searches of a network, the first step of any network of the paper begins
/// within 15 seconds. BN-Inception has 131 to do.
inline constexpr double default_search_seconds = 8.5;

/// The time that all searches of a network share. Each takes a part of what is left, at most the 25th, so
/// that a network with many operations starts soon, too: the last ones search less.
class PlanBudget {
 public:
  PlanBudget(double total_seconds, PlanSearch::Clock clock);
  /// The time runs from now on, if it does not yet: libraries are loaded.
  void begin();
  PlanSearch search() const;

 private:
  PlanSearch::Clock clock_;
  double total_;
  std::optional<double> end_;
};

/// The choices of earlier runs, in a file for each device and version of its libraries. Lines that are
/// damaged are left out. Several processes may write at the same time: a write adds to what the file holds
/// then. Of two choices for one operation the one from the longer search is kept.
class PlanCache {
 public:
  /// Nothing is kept.
  PlanCache() = default;
  /// Of `device`, which names all that a choice depends on except the operation. Choices from searches that
  /// had less than `search_seconds` (PlanBudget) are not used. Never throws: a file that cannot be read is an
  /// empty one.
  PlanCache(std::string folder, std::string device, double search_seconds = default_search_seconds);

  std::optional<std::string> find(const std::string& operation) const;
  /// Neither text may have a line break.
  void add(const std::string& operation, const std::string& choice);
  /// Writes the file if something was added. An error is logged.
  void save();
  const std::string& path() const { return path_; }  // empty: nothing is kept

 private:
  struct Choice {
    double seconds = 0;  // of the search
    std::string text;
  };
  std::map<std::string, Choice> read() const;

  std::string folder_, device_, path_;
  double search_seconds_ = default_search_seconds;
  std::map<std::string, Choice> known_, added_;
};

/// $XDG_CACHE_HOME/lpsgd, else ~/.cache/lpsgd; empty where neither variable is an absolute path.
std::string cache_folder();

/// "a b c".
std::string key_text(const std::vector<std::int64_t>& key);

}  // namespace lpsgd
