#include "trainer/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/paths.h"
#include "trainer/epoch_records.h"
#include "trainer/json_text.h"

namespace lpsgd {

using nlohmann::ordered_json;

namespace {

/// The fields that metrics.jsonl has: exposed_codec is in communication_s and computation_s.
ordered_json reported(const Seconds& seconds) {
  ordered_json json = seconds;
  json.erase("exposed_codec");
  return json;
}

}  // namespace

double EpochRecord::samples_per_second() const {
  const double busy = seconds.mean.total - seconds.mean.eval - seconds.mean.other();
  return busy > 0 ? static_cast<double>(samples()) / busy : 0;
}

std::string EpochRecord::json() const {
  const auto mean = [](double sum, std::int64_t n) {
    return n > 0 ? sum / static_cast<double>(n) : std::nan("");
  };
  const auto percent = [&](std::int64_t hits, std::int64_t n) {
    return mean(100.0 * static_cast<double>(hits), n);
  };
  ordered_json o;
  o["epoch"] = epoch;
  o["step"] = step;
  o["lr"] = lr;
  o["train_loss"] = mean(train.loss, train.samples);
  o["train_top1"] = percent(train.top1, train.samples);
  o["val_loss"] = mean(validation.loss, validation.samples);
  o["val_top1"] = percent(validation.top1, validation.samples);
  o["val_top5"] = percent(validation.top5, validation.samples);
  if (kind == DataKind::text) {
    o["train_perplexity"] = std::exp(mean(train.loss, train.samples));
    o["val_perplexity"] = std::exp(mean(validation.loss, validation.samples));
  }
  o["samples"] = samples();
  if (kind != DataKind::images) {
    o["frames"] = train.samples;
    o["padding"] = 1 - mean(static_cast<double>(train.samples), sequences.room);
  }
  o["samples_per_s"] = samples_per_second();
  o["seconds"] = reported(seconds.mean);
  o["seconds"]["other"] = seconds.mean.other();
  o["seconds_min"] = reported(seconds.min);
  o["seconds_max"] = reported(seconds.max);
  o["communication_s"] = seconds.mean.communication();
  o["computation_s"] = seconds.mean.computation();
  o["bytes_sent"] = bytes_sent;
  o["bytes_fp32"] = bytes_fp32;
  if (bytes_between) o["bytes_between_blocks"] = *bytes_between;
  if (local_steps) {
    o["synchronisations"] = synchronisations;
    o["bytes_per_synchronisation"] = mean(static_cast<double>(bytes_sent), synchronisations);
    o["replica_distance"] =
        distance.change > 0 ? std::sqrt(distance.deviation / distance.change) : std::nan("");
    o["bytes_average"] = bytes_average;
  }
  o["bad_samples"] = bad_samples;
  o["replicas_equal"] = simulated ? ordered_json(nullptr) : ordered_json(replicas_equal);
  if (simulated) o["simulated"] = true;
  for (const TensorCoding& t : coding)
    o["codec_error"][t.name] = {{"error", t.error}, {"residual", t.residual}, {"bytes", t.bytes}};
  return json_text(o);
}

std::string result_text(DataKind kind, const BatchMetrics& m, bool with_top5) {
  const auto n = static_cast<double>(std::max<std::int64_t>(1, m.samples));
  std::string out = fmt::format("loss {:.4f}", m.loss / n);
  if (kind == DataKind::text) return out + fmt::format(" perplexity {:.2f}", std::exp(m.loss / n));
  const auto percent = [&](std::int64_t hits) { return 100.0 * static_cast<double>(hits) / n; };
  out += fmt::format(" {} {:.2f}%", kind == DataKind::speech ? "frame accuracy" : "top1", percent(m.top1));
  return with_top5 ? out + fmt::format(" top5 {:.2f}%", percent(m.top5)) : out;
}

std::string text(const EpochRecord& record, std::int64_t epochs) {
  return fmt::format("epoch {}/{} | train {} | val {} | {:.0f} samples/s | comm {:.1f} s comp {:.1f} s{}",
                     record.epoch, epochs, result_text(record.kind, record.train, false),
                     result_text(record.kind, record.validation, true), record.samples_per_second(),
                     record.seconds.mean.communication(), record.seconds.mean.computation(),
                     !record.simulated && !record.replicas_equal ? " | REPLICAS DIFFER" : "");
}

MetricsFile::MetricsFile(std::string path, std::int64_t finished_epochs) : path_(std::move(path)) {
  std::string kept;
  std::int64_t number = 0, records = 0;
  if (finished_epochs > 0 && path_exists(path_)) {
    for (const EpochLine& line : read_epoch_lines(path_)) {
      ++number;
      if (line.epoch > finished_epochs) continue;
      check_epoch_record(parse_epoch_record(line.text, path_, number), path_, number);
      kept += line.text + '\n';
      ++records;
    }
  }
  if (records < finished_epochs)
    log::warn("{}: has the records of {} of {} finished epochs; summary.json will be of these alone", path_,
              records, finished_epochs);
  replace_file(path_, kept);
}

void MetricsFile::append(const EpochRecord& record) {
  const std::string line = record.json() + '\n';
  const auto fail = [&] {
    throw FileError(fmt::format("{}: cannot be written: {}", path_, std::generic_category().message(errno)));
  };
  const int fd = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) fail();
  const ssize_t put = ::write(fd, line.data(), line.size());
  if (put != static_cast<ssize_t>(line.size()) || ::fsync(fd) != 0) {
    if (put >= 0 && put != static_cast<ssize_t>(line.size())) errno = ENOSPC;
    const int error = errno;
    ::close(fd);
    errno = error;
    fail();
  }
  if (::close(fd) != 0) fail();
}

}  // namespace lpsgd
