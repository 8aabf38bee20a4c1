#include "trainer/mpi_rank.h"

#include <fmt/format.h>

#include <cstdio>
#include <new>
#include <string>

#include "comm/agree.h"

namespace lpsgd {

namespace {

void say(const std::string& message) {
  std::fflush(stdout);
  std::fprintf(stderr, "lpsgd: error: %s\n", message.c_str());
  std::fflush(stderr);
}

}  // namespace

int run_mpi_rank(std::unique_ptr<Transport> transport, const std::function<int(Transport&)>& body) {
  try {
    const int status = body(*transport);
    set_mpi_exit_status(status);
    return status;
  } catch (const SharedError& e) {
    if (transport->rank() == 0) say(e.what());
    set_mpi_exit_status(e.exit_status());
    return e.exit_status();
  } catch (const std::bad_alloc&) {
    say(fmt::format("rank {}: out of memory", transport->rank()));
  } catch (const std::exception& e) {
    say(fmt::format("rank {}: {}", transport->rank(), e.what()));
  }
  transport->abort(1);
  return 1;
}

}  // namespace lpsgd
