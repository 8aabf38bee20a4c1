#include "trainer/doctor/check.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <exception>
#include <future>
#include <memory>
#include <thread>

#include "core/error.h"
#include "core/printable.h"
#include "trainer/json_text.h"
#include "trainer/print.h"

namespace lpsgd::doctor {

namespace {

using nlohmann::ordered_json;

std::atomic<bool> stuck = false;

constexpr std::array status_names = std::to_array<const char*>({"ok", "warning", "error", "absent"});

/// The title of a group.
std::string title(const std::string& group) {
  if (group == "mpi" || group == "gpu") return group == "mpi" ? "MPI" : "GPU";
  return group == "python" ? "Python" : group;
}

std::string line(const Check& check) {
  const std::string name = check.name.substr(check.name.find('.') + 1);
  const std::string found = check.host.empty() ? check.found : check.host + ": " + check.found;
  std::string out = fmt::format("  {:<8} {:<14} {}\n", to_text(check.status), name, printable(found));
  if (!check.advice.empty()) out += fmt::format("{:26}-> {}\n", "", printable(check.advice));
  return out;
}

}  // namespace

const char* to_text(Status status) {
  return status_names[static_cast<std::size_t>(status)];
}

Checks run_step(const Step& step) {
  // The thread may outlive this call, so it owns what it uses.
  auto task = std::make_shared<std::packaged_task<Checks()>>(step.run);
  std::future<Checks> result = task->get_future();
  std::thread([task] { (*task)(); }).detach();
  if (result.wait_for(std::chrono::duration<double>(step.seconds)) != std::future_status::ready) {
    stuck = true;
    return {{step.name, Status::error, fmt::format("no answer within {:.0f} s", step.seconds),
             "what it looks at does not answer (a driver, a disk, a file server): see dmesg"}};
  }
  try {
    return result.get();
  } catch (const std::exception& e) {
    return {{step.name, Status::error, fmt::format("could not be checked: {}", e.what()),
             "see what the message names"}};
  }
}

bool is_stuck() {
  return stuck;
}

ordered_json to_json(const Check& check) {
  ordered_json out{{"name", check.name}, {"status", to_text(check.status)}, {"found", check.found}};
  if (!check.advice.empty()) out["advice"] = check.advice;
  if (!check.host.empty()) out["host"] = check.host;
  for (const auto& [key, value] : check.values.items()) out[key] = value;
  return out;
}

Check check_from_json(const ordered_json& json) {
  Check check;
  const auto take = [&](const char* key) {
    const auto at = json.find(key);
    return at != json.end() && at->is_string() ? at->get<std::string>() : std::string();
  };
  if (!json.is_object()) throw FileError("a check is not an object");
  const std::string status = take("status");
  const auto known = std::find(status_names.begin(), status_names.end(), status);
  if (known == status_names.end()) throw FileError("a check has no status");
  check.name = take("name");
  check.status = static_cast<Status>(known - status_names.begin());
  check.found = take("found");
  check.advice = take("advice");
  check.host = take("host");
  for (const auto& [key, value] : json.items())
    if (key != "name" && key != "status" && key != "found" && key != "advice" && key != "host")
      check.values[key] = value;
  return check;
}

void Report::add(const Checks& checks) {
  std::string text;
  for (const Check& check : checks) {
    errors_ += check.status == Status::error;
    warnings_ += check.status == Status::warning;
    checks_.push_back(to_json(check));
    if (const std::string group = check.name.substr(0, check.name.find('.')); group != group_) {
      text += title(group) + "\n";
      group_ = group;
    }
    text += line(check);
  }
  if (!json_) print(text);
}

int Report::end() {
  const auto count = [](int n, const char* what) {
    return fmt::format("{} {}{}", n > 0 ? std::to_string(n) : "no", what, n == 1 ? "" : "s");
  };
  if (json_)
    print(json_text({{"ok", errors_ == 0}, {"checks", checks_}}, 2) + "\n");
  else
    print(fmt::format("\n{}, {}\n", count(errors_, "error"), count(warnings_, "warning")));
  return errors_ > 0 ? 1 : 0;
}

std::string bytes_text(double bytes) {
  constexpr std::array units = std::to_array<const char*>({"bytes", "KiB", "MiB", "GiB", "TiB"});
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < units.size(); bytes /= 1024) ++unit;
  return fmt::format("{:.{}f} {}", bytes, unit > 0 && bytes < 10 && bytes != std::floor(bytes) ? 1 : 0,
                     units[unit]);
}

std::string seconds_text(double seconds) {
  if (seconds < 1e-6) return fmt::format("{:.0f} ns", seconds * 1e9);
  if (seconds < 1e-3) return fmt::format("{:.{}f} us", seconds * 1e6, seconds < 1e-5 ? 1 : 0);
  if (seconds < 1) return fmt::format("{:.{}f} ms", seconds * 1e3, seconds < 1e-2 ? 1 : 0);
  return fmt::format("{:.1f} s", seconds);
}

std::string rate_text(double bytes_per_second) {
  if (bytes_per_second >= 1e9) return fmt::format("{:.1f} GB/s", bytes_per_second * 1e-9);
  return fmt::format("{:.{}f} MB/s", bytes_per_second * 1e-6, bytes_per_second < 1e7 ? 1 : 0);
}

std::string count_text(std::int64_t n, const char* one) {
  return fmt::format("{} {}{}", n, one, n == 1 ? "" : "s");
}

}  // namespace lpsgd::doctor
