#include "trainer/checkpoint_writer.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "comm/agree.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "core/safetensors.h"
#include "trainer/non_finite.h"

namespace lpsgd {

namespace fs = std::filesystem;

namespace {

void check(const std::error_code& error, const fs::path& path, const char* what) {
  if (error) throw FileError(fmt::format("{}: {}: {}", path.string(), what, error.message()));
}

/// Where a checkpoint is put together.
fs::path building_folder(const std::string& run_folder, const std::string& name) {
  return fs::path(checkpoints_folder(run_folder)) / ("." + name + ".tmp");
}

/// Returns the file's checksum, as does write_state().
std::string write_model(const std::string& path, const TrainingState& state,
                        const std::vector<NamedBuffer>& buffers) {
  std::vector<std::vector<float>> turned;  // filters, in PyTorch's order
  turned.reserve(state.tensors->size());
  std::vector<StoredTensor> stored;
  for (const TensorInfo& tensor : *state.tensors) {
    std::span<const float> values = state.parameters.subspan(static_cast<std::size_t>(tensor.offset),
                                                             static_cast<std::size_t>(tensor.elements));
    if (tensor.kind == TensorKind::conv) {
      std::vector<float>& filters = turned.emplace_back(values.size());
      to_pytorch_order(tensor, values.data(), filters.data());
      values = filters;
    }
    stored.push_back({tensor.name, tensor.shape, values});
  }
  // PyTorch's order: a module's running statistics follow its own parameters.
  const auto module_of = [](const std::string& name) { return name.substr(0, name.rfind('.')); };
  for (const NamedBuffer& b : buffers) {
    const auto last = std::find_if(stored.rbegin(), stored.rend(), [&](const StoredTensor& s) {
      return module_of(s.name) == module_of(b.name);
    });
    stored.insert(last == stored.rend() ? stored.end() : last.base(),
                  StoredTensor{b.name, b.shape, b.values});
  }
  return write_safetensors(path, stored, {{"format", "pt"}});
}

std::string write_state(const std::string& path, const TrainingState& state, int rank) {
  std::vector<StoredTensor> stored;
  const auto flat = [&](const std::string& prefix, const std::string& name, std::span<const float> values) {
    if (!values.empty())
      stored.push_back({prefix + name, {static_cast<std::int64_t>(values.size())}, values});
  };
  for (std::size_t t = 0; t < state.tensors->size(); ++t) {
    const TensorInfo& tensor = (*state.tensors)[t];
    if (rank == 0)
      flat("momentum.", tensor.name,
           state.momentum.subspan(static_cast<std::size_t>(tensor.offset),
                                  static_cast<std::size_t>(tensor.elements)));
    flat("residual1.", tensor.name, state.residuals.round1[t]);
    flat("residual2.", tensor.name, state.residuals.round2[t]);
  }
  for (const NamedBuffer& b : state.buffers) stored.push_back({"buffer." + b.name, b.shape, b.values});
  for (const NamedBuffer& b : state.carried) stored.push_back({"carried." + b.name, b.shape, b.values});
  return write_safetensors(path, stored, {{"rank", std::to_string(rank)}});
}

/// Gives the folder its final name.
void rename_folder(const fs::path& building, const fs::path& target) {
  std::error_code error;
  // A checkpoint of this name is left over when a run was resumed from an older one: the two are swapped.
  const bool replaces = fs::exists(fs::symlink_status(target, error));
  if (::renameat2(AT_FDCWD, building.c_str(), AT_FDCWD, target.c_str(), replaces ? RENAME_EXCHANGE : 0) != 0)
    check({errno, std::generic_category()}, target, "cannot be made by renaming");
  if (replaces) fs::remove_all(building, error);
  sync_folder(target.parent_path().string());
}

template <class Result>
bool is_running(const std::future<Result>& task) {
  return task.valid() && task.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

}  // namespace

CheckpointWriter::CheckpointWriter(Transport& transport, std::string run_folder, std::int64_t keep)
    : transport_(transport), run_folder_(std::move(run_folder)), keep_(keep) {}

void CheckpointWriter::begin(const std::string& name, CheckpointManifest manifest, const TrainingState& state,
                             const std::vector<NamedBuffer>& averaged) {
  require(!in_flight(), "only one checkpoint is written at a time");
  name_ = name;
  manifest_ = std::move(manifest);
  state_ = &state;
  averaged_ = &averaged;
  try {
    collective_try(transport_, [&] {
      if (transport_.rank() != 0) return;
      const fs::path building = building_folder(run_folder_, name_);
      remove_unfinished(run_folder_);
      std::error_code error;
      fs::remove_all(building, error);
      check(error, building, "cannot be removed");
      fs::create_directories(building, error);
      check(error, building, "cannot be made");
    });
    collective_try(transport_,
                   [&] { files_ = std::async(std::launch::async, [this] { return write_files(); }); });
  } catch (...) {
    abandon();
    throw;
  }
  stage_ = Stage::files;
}

bool CheckpointWriter::is_busy() const {
  return is_running(files_) || is_running(folder_);
}

std::optional<CheckpointWriter::Written> CheckpointWriter::advance() {
  try {
    if (stage_ == Stage::files) {
      files_are_written();
      stage_ = Stage::folder;
    } else if (stage_ == Stage::folder) {
      Written out{(fs::path(checkpoints_folder(run_folder_)) / name_).string()};
      collective_try(transport_, [&] {
        if (folder_.valid()) out.at = folder_.get();
      });
      stage_ = Stage::idle;
      return out;
    }
  } catch (...) {
    abandon();
    throw;
  }
  return std::nullopt;
}

void CheckpointWriter::files_are_written() {
  Files mine;
  collective_try(transport_, [&] { mine = files_.get(); });
  check_finite_everywhere(transport_, mine.non_finite, manifest_.position.step);
  manifest_.files = {{model_file, mine.model}};
  const std::vector<std::string> sums = transport_.all_gather_text(mine.state);
  for (int r = 0; r < transport_.size(); ++r)
    manifest_.files.emplace_back(state_file(r), sums[static_cast<std::size_t>(r)]);
  collective_try(transport_, [&] {
    if (transport_.rank() == 0) folder_ = std::async(std::launch::async, [this] { return publish(); });
  });
}

CheckpointWriter::Files CheckpointWriter::write_files() const {
  Files out;
  out.non_finite = first_non_finite(*state_, *averaged_);
  if (!out.non_finite.empty()) return out;
  const fs::path building = building_folder(run_folder_, name_);
  const int rank = transport_.rank();
  if (rank == 0) out.model = write_model(building / model_file, *state_, *averaged_);
  out.state = write_state(building / state_file(rank), *state_, rank);
  return out;
}

double CheckpointWriter::publish() const {
  const fs::path building = building_folder(run_folder_, name_);
  write_manifest(building.string(), manifest_);
  sync_folder(building.string());
  verify_all(read_manifest(building.string()), building.string());
  rename_folder(building, fs::path(checkpoints_folder(run_folder_)) / name_);
  const double now = now_seconds();
  remove_old_checkpoints(run_folder_, name_, keep_);
  return now;
}

void CheckpointWriter::abandon() {
  if (files_.valid()) files_.wait();
  if (folder_.valid()) folder_.wait();
  files_ = {};
  folder_ = {};
  stage_ = Stage::idle;
  if (transport_.rank() != 0) return;
  std::error_code ignored;
  fs::remove_all(building_folder(run_folder_, name_), ignored);
  fs::remove(checkpoints_folder(run_folder_), ignored);  // only if it is empty
}

}  // namespace lpsgd
