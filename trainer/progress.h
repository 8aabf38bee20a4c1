// Progress on standard output: one line rewritten in place on the user's terminal, plain lines elsewhere.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lpsgd {

struct BatchMetrics;

/// `--progress`. `automatic`: as `terminal` where is_on_terminal(), else as `plain`.
enum class ProgressMode : std::uint8_t { automatic, plain, terminal, none };

/// Whether standard output is the terminal of the user, on which this process was started. A launcher's
/// pseudo-terminal between a rank and a file (Open MPI's mpirun has one) does not count: it is not the
/// process's controlling terminal.
bool is_on_terminal();

struct StepLine {
  std::int64_t step = 0, steps = 0;  // since the start, in all
  std::optional<double> loss;  // of rank 0's parts of the batches since the last line, if they held samples
  double lr = 0;
  double step_seconds = 0, samples_per_second = 0;
  double communication = 0;  // share of the time, 0..1
  double compression = 1;    // float32 bytes over bytes on the wire; 0: nothing was sent
};

/// "step 1/390 | loss 2.3013 | lr 1.0e-01 | 12.3 ms | 10374 samples/s | comm 31% | wire 7.9x"
std::string text(const StepLine& line);

/// "1h02m", "3m10s", "12s".
std::string duration_text(double seconds);

/// Limits the rate of step lines: on a terminal to ten a second, elsewhere to the first, the last and one in
/// ten seconds.
class Progress {
 public:
  /// Shows nothing with mode `none` or if not `active`.
  Progress(bool active, ProgressMode mode, std::int64_t first_step, std::int64_t total_steps);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Whether a line is due once `step` is done.
  bool due(std::int64_t step) const;
  /// Counts one finished step and, if `due`, shows a line. `since_line`: of all steps since the last one.
  void step(std::int64_t step, const BatchMetrics& since_line, double lr, double seconds,
            double communication_seconds, std::int64_t samples, double compression, bool due);
  /// A line that stays, such as an epoch's summary.
  void line(const std::string& text);

 private:
  bool active_, terminal_, open_ = false;
  std::int64_t first_step_, total_steps_;
  double started_, shown_ = 0;
  double seconds_ = 0, communication_ = 0;
  std::int64_t steps_ = 0, samples_ = 0;
};

}  // namespace lpsgd
