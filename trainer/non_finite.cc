#include "trainer/non_finite.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string>

namespace lpsgd {

namespace {

std::string first_non_finite(const std::vector<NamedBuffer>& buffers, const char* kind) {
  for (const NamedBuffer& b : buffers)
    if (!all_finite(b.values)) return fmt::format("the {} of '{}'", kind, b.name);
  return "";
}

constexpr const char* average = "the average of the ranks' weights of ";

std::string first_non_finite(const TrainingState& state) {
  // Where each rank has weights of its own, the parameters are their average, and on rank 0 only.
  const bool own_weights = std::any_of(state.arenas.begin(), state.arenas.end(),
                                       [](const NamedArena& arena) { return arena.name == "weights"; });
  for (std::size_t t = 0; t < state.tensors->size(); ++t) {
    const TensorInfo& tensor = (*state.tensors)[t];
    const auto finite = [&](std::span<const float> arena) {
      return arena.empty() || all_finite(arena.subspan(static_cast<std::size_t>(tensor.offset),
                                                       static_cast<std::size_t>(tensor.elements)));
    };
    const auto finite_residual = [&](const std::vector<std::span<float>>& round) {
      return round.empty() || all_finite(round[t]);
    };
    if (!own_weights && !finite(state.parameters)) return fmt::format("the weights of '{}'", tensor.name);
    for (const NamedArena& arena : state.arenas)
      if (!finite(arena.values))
        return fmt::format("the {}{} of '{}'", arena.name, arena.name == "weights" ? "" : " values",
                           tensor.name);
    if (!finite_residual(state.residuals.round1) || !finite_residual(state.residuals.round2) ||
        !finite_residual(state.block_residuals.round1) || !finite_residual(state.block_residuals.round2))
      return fmt::format("the residuals of '{}'", tensor.name);
    if (!finite(state.parameters)) return fmt::format("{}'{}'", average, tensor.name);
  }
  if (state.frozen.tensors)
    for (const TensorInfo& tensor : *state.frozen.tensors)
      if (!all_finite(state.frozen.of(tensor))) return fmt::format("the weights of '{}'", tensor.name);
  const std::string found = first_non_finite(state.buffers, "running statistics");
  return found.empty() ? first_non_finite(state.carried, "carried values") : found;
}

}  // namespace

bool all_finite(std::span<const float> values) {
  std::uint32_t largest = 0;  // magnitudes compare as their bits do
  for (const float v : values) largest = std::max(largest, std::bit_cast<std::uint32_t>(v) & 0x7fffffffu);
  return largest < 0x7f800000u;
}

std::string first_non_finite(const TrainingState& state, const std::vector<NamedBuffer>& averaged) {
  const std::string found = first_non_finite(state);
  return found.empty() ? first_non_finite(averaged, "averaged running statistics") : found;
}

void check_finite_everywhere(Transport& transport, const std::string& found, std::int64_t steps) {
  throw_if_non_finite(transport.all_gather_text(found), steps);
}

void throw_if_non_finite(const std::vector<std::string>& of_ranks, std::int64_t steps) {
  // An average is to blame only if all that it is of is finite.
  for (const bool of_average : {false, true})
    for (std::size_t rank = 0; rank < of_ranks.size(); ++rank)
      if (!of_ranks[rank].empty() && of_ranks[rank].starts_with(average) == of_average)
        throw NonFiniteError(fmt::format("step {}: {} on rank {} hold a NaN or an infinity",
                                         std::max<std::int64_t>(0, steps - 1), of_ranks[rank], rank));
}

}  // namespace lpsgd
