#include "trainer/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>

#include "core/error.h"
#include "core/file.h"

namespace lpsgd {

namespace {
constexpr std::size_t seconds_count = sizeof(Seconds) / sizeof(double);
double* as_doubles(Seconds& s) {
  return reinterpret_cast<double*>(&s);
}
const double* as_doubles(const Seconds& s) {
  return reinterpret_cast<const double*>(&s);
}
}  // namespace

void Seconds::add(const Seconds& more) {
  for (std::size_t i = 0; i < seconds_count; ++i) as_doubles(*this)[i] += as_doubles(more)[i];
}

void SecondsOfRanks::add(const SecondsOfRanks& more) {
  mean.add(more.mean);
  min.add(more.min);
  max.add(more.max);
}

SecondsOfRanks over_ranks(Transport& transport, const Seconds& mine) {
  const std::size_t ranks = static_cast<std::size_t>(transport.size());
  std::vector<Seconds> all(ranks);
  transport.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  SecondsOfRanks out{{}, all[0], all[0]};
  for (const Seconds& one : all) {
    out.mean.add(one);
    for (std::size_t i = 0; i < seconds_count; ++i) {
      as_doubles(out.min)[i] = std::min(as_doubles(out.min)[i], as_doubles(one)[i]);
      as_doubles(out.max)[i] = std::max(as_doubles(out.max)[i], as_doubles(one)[i]);
    }
  }
  for (std::size_t i = 0; i < seconds_count; ++i) as_doubles(out.mean)[i] /= static_cast<double>(ranks);
  return out;
}

std::vector<BatchMetrics> of_all_ranks(Transport& transport, const BatchMetrics& mine) {
  std::vector<BatchMetrics> all(static_cast<std::size_t>(transport.size()));
  transport.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

BatchMetrics sum(const std::vector<BatchMetrics>& parts) {
  BatchMetrics sum;
  for (const BatchMetrics& one : parts) {
    sum.loss += one.loss;
    sum.top1 += one.top1;
    sum.top5 += one.top5;
    sum.samples += one.samples;
  }
  return sum;
}

std::uint64_t sum_over_ranks(Transport& transport, std::uint64_t mine) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(transport.size()));
  transport.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  std::uint64_t sum = 0;
  for (const std::uint64_t one : all) sum += one;
  return sum;
}

std::vector<CodingError> sum_over_ranks(Transport& transport, const std::vector<CodingError>& mine) {
  std::vector<CodingError> all(mine.size() * static_cast<std::size_t>(transport.size()));
  transport.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  std::vector<CodingError> sum(mine.size());
  for (std::size_t i = 0; i < all.size(); ++i) sum[i % mine.size()].add(all[i]);
  return sum;
}

double EpochRecord::samples_per_second() const {
  const double busy = seconds.mean.total - seconds.mean.eval - seconds.mean.other();
  return busy > 0 ? static_cast<double>(train.samples) / busy : 0;
}

std::string EpochRecord::json() const {
  using nlohmann::ordered_json;
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
  o["samples"] = train.samples;
  o["samples_per_s"] = samples_per_second();
  const auto parts = [](const Seconds& of) {
    return ordered_json{{"total", of.total},     {"data", of.data},
                        {"forward", of.forward}, {"backward", of.backward},
                        {"encode", of.encode},   {"transfer", of.transfer},
                        {"decode", of.decode},   {"exposed_comm", of.exposed_comm},
                        {"update", of.update},   {"eval", of.eval}};
  };
  o["seconds"] = parts(seconds.mean);
  o["seconds"]["other"] = seconds.mean.other();
  o["seconds_min"] = parts(seconds.min);
  o["seconds_max"] = parts(seconds.max);
  o["communication_s"] = seconds.mean.communication();
  o["computation_s"] = seconds.mean.computation();
  o["bytes_sent"] = bytes_sent;
  o["bytes_fp32"] = bytes_fp32;
  o["replicas_equal"] = replicas_compared ? ordered_json(replicas_equal) : ordered_json(nullptr);
  if (simulated) o["simulated"] = true;
  for (const TensorCoding& t : coding)
    o["codec_error"][t.name] = {{"error", t.error}, {"residual", t.residual}, {"bytes", t.bytes}};
  return o.dump();
}

MetricsFile::MetricsFile(std::string path, std::int64_t finished_epochs) : path_(std::move(path)) {
  std::string kept;
  if (finished_epochs > 0 && std::filesystem::exists(path_)) {
    std::istringstream old(read_file(path_));
    for (std::string line; std::getline(old, line);) {
      const auto record = nlohmann::json::parse(line, nullptr, false);
      if (record.is_object() && record.value("epoch", std::int64_t{0}) <= finished_epochs)
        kept += line + '\n';
    }
  }
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
  ::close(fd);
}

}  // namespace lpsgd
