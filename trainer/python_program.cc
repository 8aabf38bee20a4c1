#include "trainer/python_program.h"

#include <algorithm>
#include <array>
#include <cstdlib>

namespace lpsgd {

namespace {

std::string setting(const char* variable, const char* usual) {
  const char* value = std::getenv(variable);
  return value && *value ? value : usual;
}

}  // namespace

std::string python_interpreter(const char* usual) {
  return setting("LPSGD_PYTHON", usual);
}

std::string report_folder() {
  return setting("LPSGD_REPORT", LPSGD_REPORT_FOLDER);
}

bool is_for_ranks(std::string_view variable) {
  constexpr std::array begins = std::to_array<std::string_view>(
      {"PMI_", "PMIX_", "MPI_LOCAL", "OMPI_COMM_WORLD_", "OMPI_MCA_ess", "OMPI_MCA_orte_", "OMPI_MCA_pmix",
       "OMPI_UNIVERSE_SIZE", "OMPI_NUM_APP_CTX", "OMPI_APP_CTX_NUM_PROCS", "OMPI_FIRST_RANKS", "OMPI_ARGV",
       "OMPI_COMMAND", "OMPI_FILE_LOCATION", "SLURM_STEP_", "SLURM_PROCID"});
  return std::any_of(begins.begin(), begins.end(),
                     [&](std::string_view begin) { return variable.starts_with(begin); });
}

}  // namespace lpsgd
