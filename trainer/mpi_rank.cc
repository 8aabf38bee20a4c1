#include "trainer/mpi_rank.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <new>
#include <string>
#include <string_view>
#include <thread>

#include "comm/agree.h"
#include "core/printable.h"
#include "trainer/agreement.h"
#include "trainer/environment.h"
#include "trainer/mpirun.h"

namespace lpsgd {

namespace {

void say(const std::string& message) {
  std::fflush(stdout);
  std::fprintf(stderr, "lpsgd: error: %s\n", printable_lines(message).c_str());
  std::fflush(stderr);
}

/// Whether the launcher has started as many processes as MPI counts ranks. With the launcher of another MPI
/// library each process would train alone, as rank 0 of 1.
bool is_launched_by_its_own_mpi(const Transport& transport) {
  const LaunchedAs as = launched_as();
  if (as.launcher == nullptr || as.size == transport.size()) return true;
  if (as.rank == 0)
    say(fmt::format(
        "{} started {} process{}, but lpsgd is linked with {}, which counts {} rank{}; start it with that "
        "library's launcher: {} -n {} lpsgd ...{}",
        as.launcher, as.size, as.size > 1 ? "es" : "", mpi_version(), transport.size(),
        transport.size() > 1 ? "s" : "", mpirun(), as.size,
        as.launcher == std::string_view("srun") ? " (or with the srun --mpi=KIND that it supports)" : ""));
  // A launcher may end all processes once the first has failed, so wait until rank 0 has printed.
  std::this_thread::sleep_for(std::chrono::seconds(2));
  return false;
}

/// Collective, the first of every command.
void start_together(Transport& transport, const std::vector<Fact>& facts, const std::string& mistake) {
  const Place start("trainer/mpi_rank.cc", 0);  // the same in every version, so that versions are compared
  const auto check = [&] {
    if (!mistake.empty()) throw ConfigError(mistake);
  };
  collective_try(transport, check, start);
  require_agreement(transport, facts, start);
}

/// Runs `body` as run_mpi_rank() does, with the same launcher on all ranks.
int run_rank(std::unique_ptr<Transport> transport, const std::function<int(Transport&)>& body) {
  try {
    const int status = body(*transport);
    set_mpi_exit_status(status);
    return status;
  } catch (const SharedError& e) {
    if (transport->rank() == 0) say(e.what());
    set_mpi_exit_status(e.exit_status());
    return e.exit_status();
  } catch (const StalledError& e) {
    say(fmt::format("rank {}: {}", transport->rank(), e.what()));
  } catch (const CommError& e) {  // most often of several ranks
    await_turn(transport->rank());
    say(fmt::format("rank {}: {}", transport->rank(), e.what()));
  } catch (const std::bad_alloc&) {
    say(fmt::format("rank {}: out of memory", transport->rank()));
  } catch (const std::exception& e) {
    say(fmt::format("rank {}: {}", transport->rank(), e.what()));
  }
  if (transport->size() > 1)
    transport->abort(1);  // the launcher adds a line of its own
  else
    set_mpi_exit_status(1);
  return 1;
}

}  // namespace

int run_mpi_rank(std::unique_ptr<Transport> transport, const std::vector<Fact>& facts,
                 const std::function<int(Transport&)>& body) {
  if (!is_launched_by_its_own_mpi(*transport)) {
    set_mpi_exit_status(2);
    return 2;
  }
  return run_rank(std::move(transport), [&](Transport& ranks) {
    start_together(ranks, facts, start_timeout_mistake());
    return body(ranks);
  });
}

int meet_other_ranks(const std::string& command, const std::string& mistake) {
  if (launched_as().size == 1) return 0;
  std::unique_ptr<Transport> transport = make_mpi_transport();
  if (transport->size() == 1) return 0;  // the launcher of another library: each process is alone
  return run_rank(std::move(transport), [&](Transport& ranks) {
    start_together(ranks, start_facts(command), mistake);
    return 0;
  });
}

}  // namespace lpsgd
