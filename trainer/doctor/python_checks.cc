// Python: what runs `predict`, `study` and `report`, and whether it has the modules that they need.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <filesystem>

#include "core/json.h"
#include "trainer/doctor/checks.h"
#include "trainer/doctor/child_process.h"
#include "trainer/python_program.h"

namespace lpsgd::doctor {

namespace {

using nlohmann::ordered_json;

constexpr double python_seconds = 20;
constexpr const char* what_for = "predict, study and report";

Check failed(const std::string& found, const std::string& advice) {
  return {"python.modules", Status::warning, found, advice};
}

std::string other_python() {
  const char* set = std::getenv("LPSGD_PYTHON");
  return set != nullptr && *set != 0
             ? "unset LPSGD_PYTHON, or let it name a Python 3 with these modules"
             : "run scripts/install-packages, or set LPSGD_PYTHON to another Python 3";
}

}  // namespace

Checks interpreter_check() {
  const std::string python = python_interpreter(), program = report_folder() + "/modules.py";
  std::error_code error;
  if (!std::filesystem::is_regular_file(program, error))
    return {failed(fmt::format("{} is missing, so {} cannot start", program, what_for),
                   "let LPSGD_REPORT name the report folder of lpsgd's sources")};
  const ChildResult child =
      run_child({python, program}, python_seconds,  // No bytecode is written, and matplotlib makes no folder.
                {"PYTHONDONTWRITEBYTECODE=1", "MPLCONFIGDIR=/tmp"});
  if (!child.start_error.empty())
    return {failed(fmt::format("{} cannot be started: {}", python, child.start_error), other_python())};
  if (child.timed_out)
    return {failed(fmt::format("{} did not import its modules within {:.0f} s", python, python_seconds),
                   other_python())};
  std::vector<std::string> present, missing, packages;
  std::string version;
  ordered_json modules;
  try {
    const ordered_json said = parse_json(child.out, python);
    version = said.at("python").get<std::string>();
    modules = said.at("modules");
    for (const auto& [name, one] : modules.items()) {
      if (one.is_string()) {
        present.push_back(fmt::format("{} {}", name, one.get<std::string>()));
        continue;
      }
      missing.push_back(name);
      packages.push_back(said.at("packages").at(name).get<std::string>());
    }
  } catch (const std::exception&) {
    const std::string last = last_line(child.err.empty() ? child.out : child.err);
    return {failed(fmt::format("{} ended with status {}: {}", python, child.status,
                               last.empty() ? "without a word" : last),
                   other_python())};
  }
  Check check{"python.modules", Status::ok,
              fmt::format("{} (Python {}) runs {}: {}", python, version, what_for, fmt::join(present, ", "))};
  check.values = {{"interpreter", python}, {"version", version}, {"modules", modules}};
  if (!missing.empty()) {
    check.status = Status::warning;
    check.found = fmt::format("{} (Python {}) lacks {}, which {} need", python, version,
                              fmt::join(missing, ", "), what_for);
    check.advice = fmt::format("apt-get install {} (Debian's /usr/bin/python3), or {}",
                               fmt::join(packages, " "), other_python());
  }
  return {check};
}

}  // namespace lpsgd::doctor
