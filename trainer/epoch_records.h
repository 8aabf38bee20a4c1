// Reading metrics.jsonl: one record of an epoch per line.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace lpsgd {

/// A complete line of metrics.jsonl.
struct EpochLine {
  std::string text;
  std::int64_t epoch;
};

/// The record in one line. Throws FileError "path:line: what is wrong" unless it is a JSON object with the
/// number of an epoch.
nlohmann::json parse_epoch_record(std::string_view text, const std::string& path, std::int64_t line);

/// Throws FileError unless the record has all that a summary is made of.
void check_epoch_record(const nlohmann::json& record, const std::string& path, std::int64_t line);

/// The lines of the file's text. A last line without its end was cut off by a crash and is left out.
/// Throws FileError as parse_epoch_record() does.
std::vector<EpochLine> parse_epoch_lines(std::string_view text, const std::string& path);

/// The same of the file at `path`. Throws FileError also if it cannot be read or is too large.
std::vector<EpochLine> read_epoch_lines(const std::string& path);

}  // namespace lpsgd
