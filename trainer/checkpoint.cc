#include "trainer/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <set>
#include <utility>

#include "core/log.h"
#include "core/paths.h"

namespace lpsgd {

namespace fs = std::filesystem;

namespace {

/// A checkpoint's files. Each is verified once: when it is first opened, unless it was before. Two are held
/// in memory, those that were asked for last: a run of many ranks has as many states.
class CheckpointFiles {
 public:
  explicit CheckpointFiles(const ResumePoint& from) : from_(from) {}

  int ranks() const { return from_.manifest.ranks; }
  /// Valid until two others have been asked for.
  const SafetensorsFile& model() { return open(model_file); }
  const SafetensorsFile& state(int rank) { return open(state_file(rank)); }

 private:
  const SafetensorsFile& open(const std::string& name) {
    const std::string path = from_.folder + "/" + name;
    for (auto& file : opened_)
      if (file && file->path() == path) {
        std::swap(file, opened_[0]);
        return *opened_[0];
      }
    opened_[1] = std::move(opened_[0]);
    if (!from_.verified && !verified_.contains(name)) verify(from_.manifest, from_.folder, name);
    verified_.insert(name);
    opened_[0] = std::make_unique<SafetensorsFile>(path);
    return *opened_[0];
  }

  const ResumePoint& from_;
  std::set<std::string> verified_;
  std::array<std::unique_ptr<SafetensorsFile>, 2> opened_;  // the last one first
};

/// One old rank's state file.
struct OldState {
  ExchangeState residuals, block_residuals;
  std::vector<std::vector<float>> buffers;
};

OldState read_state(CheckpointFiles& from, int rank, const std::vector<TensorInfo>& tensors,
                    const std::vector<NamedBuffer>& buffers) {
  const SafetensorsFile& file = from.state(rank);
  OldState out;
  const auto copy = [](std::span<const float> values) {
    return std::vector<float>(values.begin(), values.end());
  };
  for (const TensorInfo& tensor : tensors) {
    const auto residual = [&](const std::string& prefix) {
      const StoredTensor* stored = file.find(prefix + tensor.name);
      return stored ? copy(stored->values) : std::vector<float>{};
    };
    out.residuals.round1.push_back(residual("residual1."));
    out.residuals.round2.push_back(residual("residual2."));
    out.block_residuals.round1.push_back(residual("block_residual1."));
    out.block_residuals.round2.push_back(residual("block_residual2."));
  }
  for (const NamedBuffer& b : buffers)
    out.buffers.push_back(copy(file.at("buffer." + b.name, b.shape).values));
  return out;
}

constexpr const char* second_moment = "second_moment";  // an arena of Adam's alone

/// Whether the state file of the checkpoint's rank has the arena.
bool has_arena(CheckpointFiles& from, int rank, const std::string& arena,
               const std::vector<TensorInfo>& tensors) {
  return from.state(rank).find(arena + "." + tensors.front().name) != nullptr;
}

/// Sets the arena to scale times the sum of the ranks' values in [first, last). False if the first has none.
bool read_arena(CheckpointFiles& from, int first, int last, const std::vector<TensorInfo>& tensors,
                const NamedArena& arena) {
  for (int rank = first; rank < last; ++rank) {
    const SafetensorsFile& file = from.state(rank);
    for (const TensorInfo& tensor : tensors) {
      const std::string name = arena.name + "." + tensor.name;
      if (rank == first && !file.find(name)) return false;
      const std::span<const float> stored = file.at(name, {tensor.elements}).values;
      float* const to = arena.values.data() + tensor.offset;
      for (std::size_t i = 0; i < stored.size(); ++i) to[i] = rank == first ? stored[i] : to[i] + stored[i];
    }
  }
  if (last - first > 1)
    for (float& value : arena.values) value *= 1.0f / static_cast<float>(last - first);
  return true;
}

/// `exact`: each rank goes on with its own.
void read_arenas(CheckpointFiles& from, int rank, bool exact, const TrainingState& state) {
  using Otherwise = NamedArena::Otherwise;
  for (const NamedArena& arena : state.arenas) {
    const bool weights = arena.otherwise == Otherwise::average;
    const int of = exact && arena.own ? rank : 0;
    const bool of_all = !exact && has_arena(from, from.ranks() - 1, arena.name, *state.tensors);
    const int last = of_all ? from.ranks() : of + 1;
    if ((exact || !weights) && read_arena(from, of, last, *state.tensors, arena)) continue;
    if (weights)
      std::copy(state.parameters.begin(), state.parameters.end(), arena.values.begin());
    else if (arena.otherwise == Otherwise::zeros)
      std::fill(arena.values.begin(), arena.values.end(), 0.0f);
    else
      throw ConfigError(fmt::format("{}: has no '{}.{}': it was written with another optimizer.kind",
                                    from.state(of).path(), arena.name, state.tensors->front().name));
  }
}

/// Sets residuals to zero. False if there are none.
bool drop(ExchangeState& residuals) {
  bool any = false;
  for (auto* round : {&residuals.round1, &residuals.round2})
    for (std::vector<float>& tensor : *round) {
      any = any || !tensor.empty();
      std::fill(tensor.begin(), tensor.end(), 0.0f);
    }
  return any;
}

/// Copies this rank's rows (shape[0]) of the carried state from the files of the ranks that had them.
void read_carried(CheckpointFiles& from, int rank, int ranks, const std::vector<NamedBuffer>& carried) {
  if (carried.empty()) return;
  const std::int64_t rows = carried[0].shape[0], old_rows = rows * ranks / from.ranks();
  for (std::int64_t row = 0, copied = 0; row < rows; row += copied) {
    const std::int64_t position = rank * rows + row, first = position % old_rows;
    const SafetensorsFile& file = from.state(static_cast<int>(position / old_rows));
    copied = std::min(rows - row, old_rows - first);
    for (const NamedBuffer& b : carried) {
      std::vector<std::int64_t> shape = b.shape;
      shape[0] = old_rows;
      const auto width = static_cast<std::int64_t>(b.values.size()) / rows;
      const auto values = file.at("carried." + b.name, shape).values.begin() + first * width;
      std::copy(values, values + copied * width, b.values.begin() + row * width);
    }
  }
}

/// Zeros for the residuals of a codec that the checkpoint's run did not have yet.
void begin_residuals(ExchangeState& of, std::size_t t, const TensorInfo& tensor, const CodecSpec& codec,
                     int rank, const ResidualLayout& layout) {
  const ResidualSizes kept = residual_sizes(tensor, codec, t, layout, rank);
  of.round1[t].assign(kept.round1, 0.0f);
  of.round2[t].assign(kept.round2, 0.0f);
}

}  // namespace

CheckpointRead read_checkpoint(const ResumePoint& from, int rank, const std::vector<CodecSpec>& codecs,
                               const TrainingState& state, ExchangeState& residuals,
                               ExchangeState* block_residuals) {
  const int ranks = state.residual_layout.ranks.ranks;
  const std::string& folder = from.folder;
  const CheckpointManifest& manifest = from.manifest;
  const std::vector<TensorInfo>& tensors = *state.tensors;
  std::vector<std::size_t> changed;  // tensors with another codec than before
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::string now = to_text(codecs[t]);
    const auto written = std::find_if(manifest.codecs.begin(), manifest.codecs.end(),
                                      [&](const auto& one) { return one.first == tensors[t].name; });
    if (written == manifest.codecs.end())
      throw ConfigError(
          fmt::format("{}: is of another network, or was written with another train.freeze or 'trained': "
                      "it did not train '{}'",
                      folder, tensors[t].name));
    if (written->second == now) continue;
    if (written->second.find("error_feedback: true") != std::string::npos)
      throw ConfigError(fmt::format(
          "{}: was written with codec {} for '{}', the configuration says {}: their residuals differ", folder,
          written->second, tensors[t].name, now));
    changed.push_back(t);
  }
  if (state.frozen.tensors)
    for (const TensorInfo& frozen : *state.frozen.tensors)
      if (std::ranges::any_of(manifest.codecs, [&](const auto& one) { return one.first == frozen.name; }))
        throw ConfigError(fmt::format(
            "{}: was written with another train.freeze or 'trained': it trained '{}'", folder, frozen.name));
  CheckpointFiles files(from);
  const bool is_adam =
      std::ranges::any_of(state.arenas, [](const NamedArena& arena) { return arena.name == second_moment; });
  if (!is_adam && has_arena(files, 0, second_moment, tensors))  // older manifests do not name the kind
    throw ConfigError(fmt::format("{}: was written with another optimizer.kind", folder));
  const SafetensorsFile& model = files.model();
  read_model(model, state);
  read_carried(files, rank, ranks, state.carried);
  const bool same = manifest.ranks == ranks;
  const bool own_weights = has_arena(files, 0, "weights", tensors);
  const bool local = std::any_of(state.arenas.begin(), state.arenas.end(),
                                 [](const NamedArena& arena) { return arena.own; });
  // Ranks of new blocks would come with what different old blocks agreed on.
  const bool same_blocks =
      !own_weights || !manifest.sync.started || manifest.sync.ranks_per_block == state.ranks_per_block;
  const bool exact = same && own_weights == local && same_blocks;
  read_arenas(files, rank, exact, state);
  const RankBlocks old_ranks{manifest.ranks, static_cast<int>(manifest.exchange_ranks_per_block)};
  const ResidualLayout& layout = state.residual_layout;
  const bool any_feedback = std::ranges::any_of(codecs, &CodecSpec::error_feedback);
  const bool same_residuals = old_ranks == layout.ranks || (same && !any_feedback);
  bool old_round2 = false;
  CheckpointRead out{.other_ranks = !same,
                     .other_blocks = same && !same_residuals,
                     .averaged = !exact && own_weights,
                     .new_codecs = changed.size()};
  const auto in_block = static_cast<int>(state.ranks_per_block);
  const auto state_of = [&](int r) {
    OldState old = read_state(files, r, tensors, state.buffers);
    for (const std::size_t t : changed) {
      if (!codecs[t].error_feedback) continue;
      begin_residuals(old.residuals, t, tensors[t], codecs[t], r, {old_ranks, layout.has_round2});
      if (in_block > 0)
        begin_residuals(old.block_residuals, t, tensors[t], codecs[t], r % in_block, state.block_layout);
    }
    for (const std::vector<float>& round2 : old.residuals.round2) old_round2 |= !round2.empty();
    return old;
  };
  if (same) {
    OldState old = state_of(rank);
    if (same_residuals) {
      residuals = std::move(old.residuals);
      out.other_round2 = fit_round2(residuals, tensors, codecs, layout, rank);
    }
    if (block_residuals && exact) *block_residuals = std::move(old.block_residuals);
    for (std::size_t b = 0; b < state.buffers.size(); ++b)
      std::copy(old.buffers[b].begin(), old.buffers[b].end(), state.buffers[b].values.begin());
  }  // otherwise model.safetensors already gave the averaged running statistics
  if (!same_residuals) {
    Redistribution all(tensors, codecs, old_ranks, layout, rank);
    for (int r = 0; r < manifest.ranks; ++r) all.add(state_of(r).residuals);
    residuals = all.take();
    out.other_round2 = any_feedback && old_round2 != layout.has_round2;
  }
  out.dropped_residuals = manifest.sync.started && !local && drop(residuals);
  return out;
}

std::vector<TensorArena> arenas_of(const TrainingState& state) {
  std::vector<TensorArena> out;
  if (state.frozen.tensors) out.push_back(state.frozen);
  out.push_back({state.tensors, state.parameters});
  return out;
}

void read_model(const SafetensorsFile& file, const TrainingState& to, const NamePatterns& skip) {
  const auto values_of = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    try {
      return file.at(name, shape).values;
    } catch (const FileError& e) {  // it is whole, but of another network
      throw UnfitTensorError(e.what(), name);
    }
  };
  std::vector<std::string> known;
  for (const TensorArena& arena : arenas_of(to))
    for (const TensorInfo& tensor : *arena.tensors) {
      known.push_back(tensor.name);
      if (!skip.matches(tensor.name))
        from_pytorch_order(tensor, values_of(tensor.name, tensor.shape).data(),
                           arena.values.data() + tensor.offset);
    }
  for (const NamedBuffer& b : to.buffers) {
    known.push_back(b.name);
    if (!skip.matches(b.name)) std::ranges::copy(values_of(b.name, b.shape), b.values.begin());
  }
  for (const StoredTensor& stored : file.tensors()) {
    if (std::ranges::count(known, stored.name) == 0 && !skip.matches(stored.name))
      throw UnfitTensorError(
          fmt::format("{}: holds '{}', which the network does not have", file.path(), stored.name),
          stored.name);
  }
}

ModelFile find_model(const std::string& path) {
  if (path_exists(path) && !is_folder(path)) return {path, path};
  std::string at = path;
  bool verified = false;
  const bool is_run = path_exists(at + "/config.yaml") || is_folder(at + "/checkpoints");
  if (!path_exists(at + "/" + model_file) && is_run) {
    std::vector<PassedOver> passed_over;
    const std::optional<ResumePoint> newest = find_resume_point(path, &passed_over, VerifiedFiles::model);
    for (const PassedOver& one : passed_over) log::warn("{}", text(one));
    if (!newest)
      throw FileError(
          fmt::format("{}: holds no checkpoint{}", path, passed_over.empty() ? "" : " that verifies"));
    at = newest->folder;
    verified = true;
  }
  if (!verified && path_exists(at + "/manifest.json")) verify(read_manifest(at), at, model_file);
  return {at + "/" + model_file, at};
}

}  // namespace lpsgd
