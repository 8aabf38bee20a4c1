#include "comm/transport.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <tuple>

#include "comm/backoff.h"

namespace lpsgd {

void Transport::wait(std::span<const Request> requests) {
  Backoff backoff;
  for (const Request request : requests) {
    backoff.reset();
    while (!test(request)) backoff.pause();
  }
}

std::uint64_t Transport::ring_share(std::uint64_t bytes) const {
  const auto ranks = static_cast<std::uint64_t>(size()), r = static_cast<std::uint64_t>(rank());
  const std::uint64_t all = 2 * (ranks - 1) * bytes;
  const std::uint64_t each = all / ranks, rest = all % ranks;
  return each + (r < rest ? 1 : 0);
}

std::vector<double> Transport::all_gather(double mine) {
  std::vector<double> all(static_cast<std::size_t>(size()));
  all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

bool Transport::all_equal(std::uint64_t mine) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(size()));
  all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  for (const std::uint64_t value : all)
    if (value != mine) return false;
  return true;
}

std::vector<std::string> Transport::all_gather_text(const std::string& mine) {
  const auto ranks = static_cast<std::size_t>(size());
  const std::uint64_t length = mine.size();
  std::vector<std::uint64_t> lengths(ranks);
  all_gather(std::as_bytes(std::span(&length, 1)), std::as_writable_bytes(std::span(lengths)));
  std::size_t longest = 0;
  for (const std::uint64_t l : lengths) longest = std::max<std::size_t>(longest, l);
  std::vector<char> padded(longest), all(longest * ranks);
  std::copy(mine.begin(), mine.end(), padded.begin());
  if (longest > 0) all_gather(std::as_bytes(std::span(padded)), std::as_writable_bytes(std::span(all)));
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < ranks; ++r) texts.emplace_back(all.data() + r * longest, lengths[r]);
  return texts;
}

namespace {
int environment_number(const char* name, int fallback) {
  const char* text = std::getenv(name);
  if (text == nullptr) return fallback;
  const std::string_view view(text);
  int value = fallback;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  return error == std::errc() && end == view.data() + view.size() ? value : fallback;
}
}  // namespace

LaunchedAs launched_as() {
  // Hydra (MPICH, Intel MPI) and Open MPI.
  for (const auto& [rank, size, local] :
       {std::tuple{"PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"},
        std::tuple{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"}}) {
    const LaunchedAs as{environment_number(rank, -1), environment_number(size, -1),
                        environment_number(local, 0)};
    if (as.rank >= 0 && as.size > as.rank) return as;
  }
  return {};
}

}  // namespace lpsgd
