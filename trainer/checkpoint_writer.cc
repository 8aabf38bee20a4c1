#include "trainer/checkpoint_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "comm/agree.h"
#include "comm/waiting.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
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
  return folder_while_written((fs::path(checkpoints_folder(run_folder)) / name).string());
}

/// Returns the file's checksum, as does write_state().
std::string write_model(const std::string& path, const TrainingState& state,
                        const std::vector<NamedBuffer>& buffers) {
  std::vector<std::vector<float>> turned;  // filters, in PyTorch's order
  std::vector<StoredTensor> stored;
  const std::vector<TensorArena> arenas = arenas_of(state);
  std::size_t tensors = 0;
  for (const TensorArena& arena : arenas) tensors += arena.tensors->size();
  turned.reserve(tensors);
  for (const TensorArena& arena : arenas)
    for (const TensorInfo& tensor : *arena.tensors) {
      std::span<const float> values = arena.of(tensor);
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
    for (const NamedArena& arena : state.arenas)
      flat(arena.name + ".", tensor.name,
           arena.values.subspan(static_cast<std::size_t>(tensor.offset),
                                static_cast<std::size_t>(tensor.elements)));
    flat("residual1.", tensor.name, state.residuals.round1[t]);
    flat("residual2.", tensor.name, state.residuals.round2[t]);
    if (state.block_residuals.round1.empty()) continue;
    flat("block_residual1.", tensor.name, state.block_residuals.round1[t]);
    flat("block_residual2.", tensor.name, state.block_residuals.round2[t]);
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
  const auto rename = [](const fs::path& from, const fs::path& to, unsigned flags) {
    const int status = flags != 0 ? ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags)
                                  : ::rename(from.c_str(), to.c_str());
    return std::error_code(status == 0 ? 0 : errno, std::generic_category());
  };
  fs::path replaced = building;  // where the old one is then
  error = rename(building, target, replaces ? RENAME_EXCHANGE : 0);
  // NFS and some other file systems cannot swap.
  if (replaces && (error == std::errc::invalid_argument || error == std::errc::function_not_supported ||
                   error == std::errc::operation_not_supported)) {
    replaced = folder_while_removed(target.string());
    std::error_code ignored;
    fs::remove_all(replaced, ignored);
    error = rename(target, replaced, 0);
    if (!error) error = rename(building, target, 0);
  }
  check(error, target, "cannot be made by renaming");
  sync_folder(target.parent_path().string());
  if (replaces) fs::remove_all(replaced, error);
}

/// Runs `work` on a thread that leaves the cores to training, as far as training needs them. If no thread can
/// be started, the future holds the error.
template <class Work>
auto start(const Work& work) -> std::future<decltype(work())> {
  const auto behind = [work] {
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 5);  // of this thread alone
    return work();
  };
  try {
    return std::async(std::launch::async, behind);
  } catch (...) {
    std::promise<decltype(work())> failed;
    failed.set_exception(std::current_exception());
    return failed.get_future();
  }
}

/// Waits for a thread; StalledError if that takes longer than Phase::checkpoint allows. `what` it does, for
/// the message.
template <class Result>
void await(const std::future<Result>& task, Transport& transport, const std::string& what) {
  const Limit limit = transport.collectives().limits.outside_step;
  Patience patience(limit);
  while (task.wait_for(std::chrono::milliseconds(100)) != std::future_status::ready) {
    if (!patience.due()) continue;
    const std::string text = fmt::format("{} takes {:.0f} s", what, patience.waited());
    if (patience.is_over()) throw StalledError(fmt::format("{}, as long as {} allows", text, limit.name));
    log::warn("{}", text);
  }
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
  std::erase(damaged_, name);
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
    files_ = start([this] { return write_files(); });
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
        if (!folder_.valid()) return;
        await(folder_, transport_, fmt::format("checkpoint {}: verifying and renaming it", name_));
        out.at = folder_.get();
      });
      stage_ = Stage::idle;
      return out;
    }
  } catch (const StalledError&) {  // abandon() would wait for the thread
    throw;
  } catch (...) {
    abandon();
    throw;
  }
  return std::nullopt;
}

void CheckpointWriter::files_are_written() {
  Files mine;
  collective_try(transport_, [&] {
    await(files_, transport_, fmt::format("checkpoint {}: writing this rank's files", name_));
    mine = files_.get();
  });
  // In one collective: while cores are busy, each of them takes its time.
  constexpr char not_finite = '!', sum = '=';
  const std::vector<std::string> found =
      transport_.all_gather_text(mine.non_finite.empty() ? sum + mine.state : not_finite + mine.non_finite);
  std::vector<std::string> non_finite;
  manifest_.files = {{model_file, mine.model}};
  for (std::size_t r = 0; r < found.size(); ++r) {
    if (found[r].empty()) throw impossible(r, "no checksum");
    non_finite.push_back(found[r].front() == not_finite ? found[r].substr(1) : "");
    manifest_.files.emplace_back(state_file(static_cast<int>(r)), found[r].substr(1));
  }
  throw_if_non_finite(non_finite, manifest_.position.step);
  if (transport_.rank() == 0) folder_ = start([this] { return publish(); });
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
  // A crash may undo the making of checkpoints/ until here: nothing in it has a checkpoint's name before.
  sync_folder(run_folder_);
  rename_folder(building, fs::path(checkpoints_folder(run_folder_)) / name_);
  const double now = now_seconds();
  remove_old_checkpoints(run_folder_, name_, keep_, damaged_);
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
  ::rmdir(checkpoints_folder(run_folder_).c_str());  // only if it is empty, and no link
}

}  // namespace lpsgd
