// What `lpsgd doctor` has found out: one Check for each thing it looked at.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lpsgd::doctor {

constexpr double mib = 1024.0 * 1024.0, gib = 1024.0 * mib;  // bytes

enum class Status : std::uint8_t {
  ok,
  warning,  // lpsgd works, but not as well as it could
  error,    // something does not work
  absent,   // not here, and nothing needs it
};
const char* to_text(Status status);

struct Check {
  std::string name;  // "files.cache": its group, and what it is about
  Status status = Status::ok;
  std::string found = {};                                            // facts, on one line
  std::string advice = {};                                           // what to do; with a warning or an error
  nlohmann::ordered_json values = nlohmann::ordered_json::object();  // the facts as numbers
  std::string host = {};  // if it is of another machine than rank 0's
};
using Checks = std::vector<Check>;

/// A function that makes checks, and the seconds that it may take.
struct Step {
  std::string name;  // of the check that reports that it failed
  double seconds;
  std::function<Checks()> run;
};

/// Runs the step on a thread of its own. An exception, or no end within its seconds, becomes a check with an
/// error. In the latter case the thread goes on, and is_stuck() is true from then on.
Checks run_step(const Step& step);
bool is_stuck();

nlohmann::ordered_json to_json(const Check& check);
/// FileError if it is not what to_json() returns.
Check check_from_json(const nlohmann::ordered_json& json);

/// Prints checks: as text at once, as JSON at the end.
class Report {
 public:
  explicit Report(bool json) : json_(json) {}
  void add(const Checks& checks);
  /// Prints what is left. Returns the process's exit status: 1 if a check is an error, else 0.
  int end();

 private:
  bool json_;
  std::string group_;
  int errors_ = 0, warnings_ = 0;
  nlohmann::ordered_json checks_ = nlohmann::ordered_json::array();
};

/// "1.5 GiB", "64 MiB".
std::string bytes_text(double bytes);
/// "340 ns", "1.2 us", "15 ms".
std::string seconds_text(double seconds);
/// "5.2 GB/s", as networks are measured.
std::string rate_text(double bytes_per_second);
/// "1 rank", "2 ranks".
std::string count_text(std::int64_t n, const char* one);

}  // namespace lpsgd::doctor
