// Progress of a command that goes through a data set: one line rewritten on a terminal, plain lines
// elsewhere.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

namespace lpsgd {

/// Functions may be called from several threads.
class DataProgress {
 public:
  /// `what` begins each line: "train".
  DataProgress(std::string what, std::int64_t total);
  ~DataProgress();
  DataProgress(const DataProgress&) = delete;
  DataProgress& operator=(const DataProgress&) = delete;

  /// Counts one sample. Shows a line at times: ten a second on a terminal, elsewhere one in ten seconds.
  void count();
  /// A line that stays.
  void line(const std::string& text);

 private:
  void show();

  std::string what_;
  std::int64_t total_, done_ = 0;
  bool terminal_, open_ = false;
  double started_, shown_;
  std::mutex mutex_;
};

}  // namespace lpsgd
