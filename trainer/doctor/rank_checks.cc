// The ranks of a job: where they run, which devices and cores they would use.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "core/device.h"
#include "core/json.h"
#include "trainer/doctor/checks.h"
#include "trainer/doctor/system_files.h"
#include "trainer/environment.h"
#include "trainer/json_text.h"
#include "trainer/run_config.h"
#include "trainer/run_folder.h"

namespace lpsgd::doctor {

namespace {

using nlohmann::ordered_json;

ordered_json place_of(const Transport& ranks) {
  const Device device = device_of({}, ranks.local_rank());
  return {{"host", hostname()},
          {"device", device.text()},
          {"bus", device.is_cuda() ? cuda_device_info(device.index).bus : ""},
          {"gpus", cuda_devices().count},
          {"threads", threads_of_rank({}, ranks.local_size())},
          {"cores", usable_core_numbers()},
          {"machine_cores", machine_cores()}};
}

std::vector<RankPlace> read_places(const std::vector<std::string>& texts) {
  std::vector<RankPlace> places;
  for (const std::string& text : texts) {
    const ordered_json one = parse_json(text, "a rank's place");
    RankPlace& place = places.emplace_back();
    one.at("host").get_to(place.host);
    one.at("device").get_to(place.device);
    one.at("bus").get_to(place.bus);
    one.at("gpus").get_to(place.gpus);
    one.at("threads").get_to(place.threads);
    one.at("cores").get_to(place.cores);
    one.at("machine_cores").get_to(place.machine_cores);
  }
  return places;
}

/// Numbers of ranks by machine, in the order of the ranks.
std::vector<std::pair<std::string, std::vector<int>>> by_machine(const std::vector<RankPlace>& ranks) {
  std::vector<std::pair<std::string, std::vector<int>>> machines;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto same = [&](const auto& machine) { return machine.first == ranks[r].host; };
    auto at = std::find_if(machines.begin(), machines.end(), same);
    if (at == machines.end()) at = machines.insert(at, {ranks[r].host, {}});
    at->second.push_back(static_cast<int>(r));
  }
  return machines;
}

/// "a; b; and 5 more": at most four of them.
std::string some(const std::vector<std::string>& texts) {
  constexpr std::size_t most = 4;
  std::string out;
  for (std::size_t i = 0; i < std::min(texts.size(), most); ++i) out += (i > 0 ? "; " : "") + texts[i];
  return texts.size() > most ? fmt::format("{}; and {} more", out, texts.size() - most) : out;
}

void warn(Check& check, const std::vector<std::string>& why, const std::string& advice) {
  check.status = Status::warning;
  check.found += ": " + some(why);
  check.advice = advice;
}

Check started(const std::vector<RankPlace>& ranks) {
  const auto machines = by_machine(ranks);
  std::vector<std::string> each;
  ordered_json values = ordered_json::array();
  for (const auto& [host, numbers] : machines) {
    each.push_back(fmt::format("{} on {}", numbers.size(), host));
    values.push_back({{"host", host}, {"ranks", numbers.size()}});
  }
  Check check{"ranks.started", Status::ok,
              fmt::format("{} of this build on {}: {}", count_text(static_cast<int>(ranks.size()), "rank"),
                          count_text(static_cast<int>(machines.size()), "machine"), some(each))};
  check.values = {{"ranks", ranks.size()}, {"machines", values}};
  return check;
}

Check devices(const std::vector<RankPlace>& ranks, bool mpi_takes_device_memory) {
  Check check{"ranks.devices"};
  std::map<std::pair<std::string, std::string>, std::vector<int>> users;  // of each GPU
  std::vector<std::string> without, shared;
  ordered_json each = ordered_json::array();
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    each.push_back(ranks[r].device);
    if (ranks[r].bus.empty())
      without.push_back(fmt::format("rank {} on {}", r, ranks[r].host));
    else
      users[{ranks[r].host, ranks[r].bus}].push_back(static_cast<int>(r));
  }
  check.values = {
      {"devices", each}, {"gpus", users.size()}, {"mpi_takes_device_memory", mpi_takes_device_memory}};
  if (users.empty()) {
    check.status = Status::absent;
    check.found = "no rank has a GPU; with train.device: auto all use the CPU";
    return check;
  }
  for (const auto& [gpu, numbers] : users)
    if (numbers.size() > 1)
      shared.push_back(fmt::format("{} are on the same GPU of {}", ranks_text(numbers), gpu.first));
  check.found = fmt::format("with train.device: auto {} use{} {}; MPI {} device memory",
                            count_text(static_cast<int>(ranks.size() - without.size()), "rank"),
                            ranks.size() - without.size() == 1 ? "s" : "",
                            count_text(static_cast<int>(users.size()), "GPU"),
                            mpi_takes_device_memory ? "takes" : "does not take");
  if (!without.empty())
    warn(check, {"no GPU: " + some(without)},
         "ranks on a CPU keep the others waiting: start ranks only on machines with GPUs, or set "
         "train.device: cpu");
  else if (!shared.empty())
    warn(check, shared,
         "start as many ranks on a machine as it has GPUs; exchange.transport: nccl needs a GPU for each "
         "rank");
  return check;
}

Check cores(const std::vector<RankPlace>& ranks, bool binds) {
  Check check{"ranks.cores"};
  std::vector<std::string> each, crowded, idle;
  ordered_json values = ordered_json::array();
  for (const auto& [host, numbers] : by_machine(ranks)) {
    std::set<int> usable;
    int threads = 0, machine = 1;
    for (const int r : numbers) {
      const RankPlace& rank = ranks[static_cast<std::size_t>(r)];
      usable.insert(rank.cores.begin(), rank.cores.end());
      threads += rank.threads;
      machine = std::max(machine, rank.machine_cores);
    }
    const int may_use = static_cast<int>(usable.size());
    const std::string text =
        fmt::format("{} with {} in all on {} of {}", count_text(static_cast<int>(numbers.size()), "rank"),
                    count_text(threads, "thread"), count_text(may_use, "core"), host);
    each.push_back(text);
    values.push_back({{"host", host}, {"ranks", numbers.size()}, {"threads", threads}, {"cores", may_use}});
    if (threads > may_use) crowded.push_back(text);
    if (binds && may_use < machine && 2 * threads <= machine)
      idle.push_back(fmt::format("{} of the {} cores of {}", may_use, machine, host));
  }
  check.values["machines"] = values;
  check.found = some(each);
  if (!crowded.empty()) {
    check.found = "more threads than cores";
    warn(check, crowded,
         "start fewer ranks on a machine: ranks that share a core wait for each other in every step");
  } else if (!idle.empty()) {
    check.found = "the launcher binds the ranks";
    warn(check, idle, "mpirun --bind-to none lets each rank use its share of the machine's cores");
  }
  return check;
}

}  // namespace

Checks place_checks(const std::vector<RankPlace>& ranks, bool mpi_takes_device_memory, bool binds) {
  return {started(ranks), devices(ranks, mpi_takes_device_memory), cores(ranks, binds)};
}

Checks rank_checks(Transport& ranks) {
  const std::vector<RankPlace> places = read_places(ranks.all_gather_text(json_text(place_of(ranks))));
  const char* const launcher = launched_as().launcher;
  const bool binds = launcher != nullptr && launcher == std::string_view("Open MPI's mpirun");
  return place_checks(places, ranks.takes_device_memory(), binds);
}

}  // namespace lpsgd::doctor
