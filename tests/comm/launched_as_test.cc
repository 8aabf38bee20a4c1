#include <gtest/gtest.h>

#include <map>
#include <string>

#include "comm/transport.h"

namespace lpsgd {
namespace {

using Environment = std::map<std::string, std::string>;

LaunchedAs launched_in(const Environment& environment) {
  return launched_as([&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

std::string text(const Environment& environment) {
  const LaunchedAs as = launched_in(environment);
  return fmt::format("{}: {} of {}{}", as.launcher ? as.launcher : "none", as.rank, as.size,
                     as.several_machines ? ", several machines" : "");
}

Environment with(Environment environment, const Environment& more) {
  for (const auto& [name, value] : more) environment[name] = value;
  return environment;
}

const Environment hydra = {{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}, {"MPI_LOCALNRANKS", "3"}};
const Environment open_mpi = {
    {"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "5"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "5"}};
// The variables of a job of 8 tasks in its script (sbatch), and of its step of 4 tasks on 2 machines (srun).
const Environment slurm_job = {{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "8"},  {"SLURM_NPROCS", "8"},
                               {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_JOB_NUM_NODES", "2"},
                               {"SLURM_NODEID", "0"}};
const Environment slurm_step = with(slurm_job, {{"SLURM_STEP_ID", "0"},
                                                {"SLURM_STEP_NUM_TASKS", "4"},
                                                {"SLURM_STEP_NUM_NODES", "2"},
                                                {"SLURM_PROCID", "3"},
                                                {"SLURM_NTASKS", "4"}});

TEST(LaunchedAs, NoLauncher) {
  EXPECT_EQ(text({}), "none: 0 of 1");
  EXPECT_EQ(text({{"PATH", "/usr/bin"}, {"OMPI_MCA_rmaps_base_oversubscribe", "1"}}), "none: 0 of 1");
}

TEST(LaunchedAs, Hydra) {
  EXPECT_EQ(text(hydra), "MPICH's mpirun: 1 of 3");
  EXPECT_EQ(text(with(hydra, {{"MPI_LOCALNRANKS", "2"}})), "MPICH's mpirun: 1 of 3, several machines");
  EXPECT_EQ(text({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}, {"MPI_LOCALNRANKS", "1"}}), "MPICH's mpirun: 0 of 1");
}

TEST(LaunchedAs, OpenMpi) {
  EXPECT_EQ(text(open_mpi), "Open MPI's mpirun: 2 of 5");
  EXPECT_EQ(text(with(open_mpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}})),
            "Open MPI's mpirun: 2 of 5, several machines");
  Environment no_local = open_mpi;
  no_local.erase("OMPI_COMM_WORLD_LOCAL_SIZE");
  EXPECT_EQ(text(no_local), "Open MPI's mpirun: 2 of 5");
}

TEST(LaunchedAs, SlurmWithinAStepOnly) {
  EXPECT_EQ(text(slurm_job), "none: 0 of 1");
  EXPECT_EQ(text(slurm_step), "srun: 3 of 4, several machines");
  EXPECT_EQ(text(with(slurm_step, {{"SLURM_STEP_NUM_NODES", "1"}})), "srun: 3 of 4");
  // Interactive and batch steps; a shell within them is no rank.
  for (const char* step : {"4294967290", "4294967291"})
    EXPECT_EQ(text(with(slurm_step, {{"SLURM_STEP_ID", step}})), "none: 0 of 1");
}

TEST(LaunchedAs, SlurmWithPmi2) {
  EXPECT_EQ(text(with(slurm_step, {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}})), "srun: 3 of 4, several machines");
}

TEST(LaunchedAs, SlurmWithPmix) {
  EXPECT_EQ(text(with(slurm_step, {{"PMIX_RANK", "3"}, {"PMIX_NAMESPACE", "slurm.pmix.7.0"}})),
            "srun: 3 of 4, several machines");
}

// mpirun starts its processes on other machines by srun, whose variables the ranks inherit.
TEST(LaunchedAs, MpirunWithinSlurm) {
  EXPECT_EQ(text(with(slurm_step, hydra)), "MPICH's mpirun: 1 of 3");
  EXPECT_EQ(text(with(slurm_step, open_mpi)), "Open MPI's mpirun: 2 of 5");
}

TEST(LaunchedAs, AnotherPmiLauncher) {
  EXPECT_EQ(text({{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}}), "a PMI launcher: 1 of 3");
}

TEST(LaunchedAs, ValuesThatAreNoNumbers) {
  EXPECT_EQ(text(with(hydra, {{"PMI_SIZE", "three"}})), "none: 0 of 1");
  EXPECT_EQ(text(with(hydra, {{"PMI_SIZE", "3x"}})), "none: 0 of 1");
  EXPECT_EQ(text(with(hydra, {{"PMI_RANK", "3"}})), "none: 0 of 1");
  EXPECT_EQ(text(with(hydra, {{"PMI_RANK", "-1"}})), "none: 0 of 1");
  EXPECT_EQ(text(with(with(open_mpi, hydra), {{"PMI_SIZE", ""}})), "Open MPI's mpirun: 2 of 5");
}

TEST(LaunchedAs, ReadsTheEnvironment) {
  for (const auto& [name, value] : open_mpi) ::setenv(name.c_str(), value.c_str(), 1);
  EXPECT_EQ(launched_as().rank, 2);
  EXPECT_EQ(launched_as().size, 5);
  for (const auto& [name, value] : open_mpi) ::unsetenv(name.c_str());
}

}  // namespace
}  // namespace lpsgd
