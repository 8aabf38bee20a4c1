// `lpsgd doctor`: what this machine can do, and what is wrong. Alone it starts two ranks to see them
// exchange; under mpirun its own ranks do so.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "comm/agree.h"
#include "comm/waiting.h"
#include "core/json.h"
#include "core/log.h"
#include "trainer/agreement.h"
#include "trainer/commands.h"
#include "trainer/doctor/checks.h"
#include "trainer/environment.h"
#include "trainer/json_text.h"
#include "trainer/mpi_rank.h"

namespace lpsgd {

namespace {

using namespace doctor;  // NOLINT: what this file is about
using nlohmann::ordered_json;

const Limit rank_limit{240, "lpsgd doctor"};  // a machine's own checks end before that

const std::vector<Step>& program_steps() {
  static const std::vector<Step> steps{{"program.build", 10, build_check},
                                       {"program.kernels", 10, instructions_check}};
  return steps;
}

const std::vector<Step>& launcher_steps() {
  static const std::vector<Step> steps{
      {"mpi.library", 10, library_check}, {"mpi.launcher", 15, launcher_check}, {"mpi.root", 5, root_check}};
  return steps;
}

const std::vector<Step>& machine_steps() {
  static const std::vector<Step> steps{{"gpu.driver", 30, driver_check},
                                       {"gpu.devices", 60, device_checks},
                                       {"gpu.libraries", 20, gpu_libraries_check},
                                       {"machine.cores", 5, cores_check},
                                       {"machine.memory", 5, memory_check},
                                       {"machine.shm", 5, shared_memory_check},
                                       {"machine.open_files", 5, open_files_check},
                                       {"machine.memlock", 5, locked_memory_check},
                                       {"files.runs", 10, runs_check},
                                       {"files.cache", 10, cache_check},
                                       {"files.data", 10, data_check},
                                       {"python.modules", 30, interpreter_check}};
  return steps;
}

/// Adds the checks of these steps to `report`, each as soon as it is there, and to the result.
Checks run_steps(const std::vector<Step>& steps, Report* report) {
  Checks all;
  for (const Step& step : steps) {
    const Checks checks = run_step(step);
    if (report != nullptr) report->add(checks);
    all.insert(all.end(), checks.begin(), checks.end());
  }
  return all;
}

int check_alone(bool json) {
  Report report(json);
  run_steps(program_steps(), &report);
  run_steps(launcher_steps(), &report);
  run_steps(machine_steps(), &report);
  run_steps({{"ranks.started", 40, two_ranks_checks}}, &report);
  return report.end();
}

/// The first rank of each machine checks it. On rank 0: what is wrong on the other machines. Collective.
Checks other_machines(Transport& ranks, Report& report) {
  std::string mine;
  if (ranks.rank() == 0) {
    run_steps(machine_steps(), &report);
  } else if (ranks.local_rank() == 0) {
    ordered_json wrong = ordered_json::array();
    for (Check& check : run_steps(machine_steps(), nullptr)) {
      if (check.status != Status::warning && check.status != Status::error) continue;
      check.host = hostname();
      wrong.push_back(to_json(check));
    }
    mine = json_text(wrong);
  }
  Checks wrong;
  for (const std::string& text : ranks.all_gather_text(mine)) {
    if (text.empty()) continue;
    const ordered_json found = parse_json(text, "the checks of a machine");
    for (const ordered_json& one : found) wrong.push_back(check_from_json(one));
  }
  return wrong;
}

int check_ranks(Transport& ranks, const DoctorArguments& arguments) {
  ranks.collectives().limits = {rank_limit, rank_limit};
  const bool first = ranks.rank() == 0;
  Report report(arguments.json);
  if (first && !arguments.ranks_only) {
    run_steps(program_steps(), &report);
    run_steps(launcher_steps(), &report);
  }
  if (!arguments.ranks_only) {
    const Checks others = other_machines(ranks, report);
    if (first) report.add(others);
  }
  for (const auto& check : {rank_checks, exchange_checks}) {
    const Checks checks = check(ranks);
    if (first) report.add(checks);
  }
  int status = first ? report.end() : 0;
  ranks.broadcast(std::as_writable_bytes(std::span(&status, 1)), 0);
  return status;
}

}  // namespace

int doctor_command(const DoctorArguments& arguments) {
  const LaunchedAs launched = launched_as();
  init_logging(launched.rank, launched.size);
  const bool alone = launched.launcher == nullptr && !arguments.ranks_only;
  const int status = alone ? check_alone(arguments.json)
                           : run_mpi_rank(make_mpi_transport(), start_facts("doctor"),
                                          [&](Transport& ranks) { return check_ranks(ranks, arguments); });
  if (is_stuck()) {  // the end of the program would wait for what does not answer
    std::fflush(nullptr);
    ::_exit(status);
  }
  return status;
}

}  // namespace lpsgd
