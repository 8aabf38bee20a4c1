// A program that is started, read and, at a limit, ended.
#pragma once

#include <string>
#include <vector>

namespace lpsgd::doctor {

struct ChildResult {
  std::string start_error;  // why it could not be started; empty: it was
  bool timed_out = false;   // it was ended, and all that it had started with it
  int status = 0;           // as the shell counts: 128 + n for signal n
  std::string out, err;     // at most 1 MiB each
  double seconds = 0;
};

/// Runs words[0], found by PATH, with an empty standard input. Variables that a launcher has set for this
/// process's rank are left out; `variables` ("NAME=value") are added.
ChildResult run_child(const std::vector<std::string>& words, double seconds,
                      const std::vector<std::string>& variables = {});

/// The last line of a text that is not empty.
std::string last_line(const std::string& text);

}  // namespace lpsgd::doctor
