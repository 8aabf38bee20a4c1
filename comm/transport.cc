#include "comm/transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "comm/backoff.h"

namespace lpsgd {

void Transport::wait(std::span<const Request> requests) {
  Backoff backoff;
  for (const Request request : requests) {
    backoff.reset();
    while (!test(request)) backoff.pause();
  }
}

void Transport::timed_out(const std::string& message) noexcept {
  try {
    end_process_in(8, fmt::format("rank {}: {}", rank_in_run(rank()), message));
  } catch (const std::exception&) {
    end_process_in(8, "");
  }
}

std::uint64_t Transport::ring_share(std::uint64_t bytes) const {
  const auto ranks = static_cast<std::uint64_t>(size()), r = static_cast<std::uint64_t>(rank());
  const std::uint64_t all = 2 * (ranks - 1) * bytes;
  const std::uint64_t each = all / ranks, rest = all % ranks;
  return each + (r < rest ? 1 : 0);
}

bool Transport::all_equal(std::uint64_t mine, Place at) {
  for (const std::uint64_t value : all_gather(mine, at))
    if (value != mine) return false;
  return true;
}

std::vector<std::string> Transport::all_gather_text(const std::string& mine, Place at) {
  const auto ranks = static_cast<std::size_t>(size());
  const std::vector<std::uint64_t> lengths = all_gather(std::uint64_t{mine.size()}, at);
  std::size_t longest = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    if (lengths[r] > longest_text)
      throw impossible(static_cast<std::size_t>(rank_in_run(static_cast<int>(r))),
                       fmt::format("the length {} of a text", lengths[r]));
    longest = std::max<std::size_t>(longest, lengths[r]);
  }
  std::vector<char> padded(longest), all(longest * ranks);
  std::copy(mine.begin(), mine.end(), padded.begin());
  if (longest > 0) all_gather(std::as_bytes(std::span(padded)), std::as_writable_bytes(std::span(all)), at);
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < ranks; ++r) texts.emplace_back(all.data() + r * longest, lengths[r]);
  return texts;
}

LaunchedAs launched_as(const std::function<const char*(const char*)>& variable) {
  const auto number = [&](const char* name, int otherwise) {
    const char* text = variable(name);
    if (text == nullptr) return otherwise;
    int value = 0;
    const char* last = text + std::strlen(text);
    const auto [end, error] = std::from_chars(text, last, value);
    return error == std::errc() && end == last ? value : otherwise;
  };
  const auto found = [&](const char* launcher, const char* rank, const char* size, const char* local_size) {
    LaunchedAs as{launcher, number(rank, -1), number(size, -1)};
    as.several_machines = number(local_size, as.size) < as.size;
    return as.rank >= 0 && as.size > as.rank ? as : LaunchedAs{};
  };
  // Within a Slurm step, mpirun starts its ranks by srun, so Slurm's variables then count mpirun's own
  // processes. With srun --mpi=pmi2 the variables PMI_* are Slurm's; only Hydra sets MPI_LOCALNRANKS.
  const bool hydra = variable("MPI_LOCALNRANKS") != nullptr;
  LaunchedAs as;
  if (hydra) as = found("MPICH's mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS");
  if (as.launcher == nullptr)
    as = found("Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
               "OMPI_COMM_WORLD_LOCAL_SIZE");
  // Outside a step, in the script of a job, no srun has started this process. Interactive and batch steps
  // have numbers beyond an int's range.
  if (as.launcher == nullptr && number("SLURM_STEP_ID", -1) >= 0) {
    as = found("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "");
    as.several_machines = number("SLURM_STEP_NUM_NODES", 1) > 1;
  }
  if (as.launcher == nullptr) as = found("a PMI launcher", "PMI_RANK", "PMI_SIZE", "");
  return as;
}

}  // namespace lpsgd
