#include "trainer/epoch_records.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"

namespace lpsgd {

namespace {

constexpr std::uint64_t max_bytes = 256 << 20;  // of the file
constexpr std::size_t max_line_bytes = 16 << 20;

}  // namespace

nlohmann::json parse_epoch_record(std::string_view text, const std::string& path, std::int64_t line) {
  const std::string source = fmt::format("{}:{}", path, line);
  if (text.size() > max_line_bytes)
    throw FileError(
        fmt::format("{}: too long: {} bytes, expected {} or fewer", source, text.size(), max_line_bytes));
  // An ordered object would take time quadratic in its keys, for each of many lines.
  auto record = parse_json<nlohmann::json>(text, source);
  const auto epoch = record.is_object() ? record.find("epoch") : record.end();
  if (epoch == record.end() || !epoch->is_number_integer())
    throw FileError(fmt::format("{}: not an epoch's record: an object with an integer 'epoch'", source));
  return record;
}

void check_epoch_record(const nlohmann::json& record, const std::string& path, std::int64_t line) {
  const std::string source = fmt::format("{}:{}", path, line);
  const auto require_value = [&](bool is_right, const std::string& key) {
    if (!is_right)
      throw FileError(
          fmt::format("{}: not an epoch's record: '{}' is missing or of another type", source, key));
  };
  const auto has = [](const nlohmann::json& in, const char* key, bool may_be_null = false) {
    const auto at = in.find(key);
    return at != in.end() && (at->is_number() || (may_be_null && at->is_null()));
  };
  for (const char* const key : {"val_loss", "val_top1", "val_top5"})
    require_value(has(record, key, true), key);
  for (const char* const key : {"step", "samples", "communication_s", "computation_s"})
    require_value(has(record, key), key);
  for (const char* const key : {"bytes_sent", "bytes_fp32"}) {
    require_value(has(record, key), key);
    whole_number(record[key], source);
  }
  const auto seconds = record.find("seconds");
  require_value(seconds != record.end() && seconds->is_object() && has(*seconds, "total"), "seconds.total");
}

std::vector<EpochLine> parse_epoch_lines(std::string_view text, const std::string& path) {
  std::vector<EpochLine> lines;
  std::size_t end = 0;
  for (std::int64_t number = 1; (end = text.find('\n')) != std::string_view::npos; ++number) {
    const std::string_view line = text.substr(0, end);
    lines.push_back({std::string(line), parse_epoch_record(line, path, number)["epoch"].get<std::int64_t>()});
    text.remove_prefix(end + 1);
  }
  return lines;
}

std::vector<EpochLine> read_epoch_lines(const std::string& path) {
  return parse_epoch_lines(read_file(path, max_bytes), path);
}

}  // namespace lpsgd
