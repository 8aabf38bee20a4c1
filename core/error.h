// Errors. Every failure that a user can cause or encounter is thrown as one of these types. main() catches
// it, prints it once and turns it into the exit status of the job.
#pragma once

#include <fmt/core.h>

#include <source_location>
#include <stdexcept>
#include <string>

namespace lpsgd {

/// Base of all errors. `exit_status` is that of the process: 2 for errors before the run (configuration,
/// command line), 1 for failures at run time.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, int exit_status = 1,
                 std::source_location where = std::source_location::current())
      : std::runtime_error(message), exit_status_(exit_status), where_(where) {}
  int exit_status() const { return exit_status_; }
  /// Where in the source the error was thrown. Printed for internal errors and in debug logs.
  const std::source_location& where() const { return where_; }

 private:
  int exit_status_;
  std::source_location where_;
};

/// A configuration, network file or command line that is refused. The message starts with
/// "file:line:column: key: " or, for an override, with the option.
class ConfigError : public Error {
 public:
  explicit ConfigError(const std::string& message,
                       std::source_location where = std::source_location::current())
      : Error(message, 2, where) {}
};

/// A data set, checkpoint or other file that is missing, truncated or malformed. The message names the path.
class FileError : public Error {
 public:
  explicit FileError(const std::string& message, std::source_location where = std::source_location::current())
      : Error(message, 1, where) {}
};

/// A call of a communication library that failed, or a rank that has ended.
class CommError : public Error {
 public:
  explicit CommError(const std::string& message, std::source_location where = std::source_location::current())
      : Error(message, 1, where) {}
};

/// A wait of this rank alone, such as for its disk, that has reached its limit. The thread that it waits for
/// may never end, so nobody waits for that either. The other ranks, which wait for this one, leave the
/// message to it.
class StalledError : public CommError {
 public:
  using CommError::CommError;
};

/// A call of a device library (CUDA, cuDNN, cuBLAS, oneDNN) that failed, or a device that does not exist.
class DeviceError : public Error {
 public:
  explicit DeviceError(const std::string& message,
                       std::source_location where = std::source_location::current())
      : Error(message, 1, where) {}
};

/// Throws an internal error with the caller's file and line if `condition` is false.
inline void require(bool condition, const char* what,
                    std::source_location where = std::source_location::current()) {
  if (!condition)
    throw Error(fmt::format("internal error at {}:{}: {}", where.file_name(), where.line(), what), 1, where);
}

}  // namespace lpsgd
