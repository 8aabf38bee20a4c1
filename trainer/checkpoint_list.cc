#include "trainer/checkpoint_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>
#include <tuple>

#include "core/error.h"
#include "core/log.h"
#include "core/paths.h"

namespace lpsgd {

namespace fs = std::filesystem;

namespace {

struct CheckpointKind {
  std::string_view prefix;
  std::size_t digits;  // at least
};
constexpr CheckpointKind epoch_kind{"epoch-", 4}, step_kind{"step-", 6};
constexpr std::string_view written_suffix = ".tmp", removed_suffix = ".old";

/// The number in a checkpoint's name; -1: it is no name of this kind.
std::int64_t number_in(std::string_view name, const CheckpointKind& kind) {
  if (!name.starts_with(kind.prefix)) return -1;
  const std::string_view digits = name.substr(kind.prefix.size());
  if (digits.size() < kind.digits || digits.find_first_not_of("0123456789") != std::string_view::npos)
    return -1;
  std::int64_t number = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return error == std::errc() ? number : -1;
}

auto age(const ListedCheckpoint& one) {
  const Position at = one.manifest ? one.manifest->position : Position{-1, -1, -1};
  return std::tuple(at.step, at.epoch, one.folder);
}

ListedCheckpoint read_entry(const fs::path& path) {
  ListedCheckpoint out{path.string(), std::nullopt, ""};
  std::error_code error;
  if (!fs::exists(path / "manifest.json", error)) {
    out.error = error ? fmt::format("manifest.json: {}", error.message()) : "has no manifest.json";
    return out;
  }
  try {
    out.manifest = read_manifest(out.folder);
  } catch (const std::exception& e) {
    out.error = e.what();
  }
  return out;
}

std::string name_of(const ListedCheckpoint& one) {
  return fs::path(one.folder).filename().string();
}

/// Without a manifest only the name says how old it is.
bool is_named_after(const ListedCheckpoint& one, const Position& than) {
  return number_in(name_of(one), epoch_kind) > than.epoch || number_in(name_of(one), step_kind) > than.step;
}

std::string hidden(const fs::path& folder, std::string_view suffix) {
  return (folder.parent_path() / fmt::format(".{}{}", folder.filename().string(), suffix)).string();
}

void remove_or_warn(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) log::warn("{}: cannot be removed: {}", path.string(), error.message());
}

void remove_checkpoint(const std::string& folder) {
  const std::string hidden = folder_while_removed(folder);
  remove_or_warn(hidden);
  std::error_code error;
  fs::rename(folder, hidden, error);
  if (error) return log::warn("{}: cannot be removed: {}", folder, error.message());
  remove_or_warn(hidden);
}

}  // namespace

std::string epoch_checkpoint_name(std::int64_t epoch) {
  return fmt::format("{}{:04}", epoch_kind.prefix, epoch);
}
std::string step_checkpoint_name(std::int64_t step) {
  return fmt::format("{}{:06}", step_kind.prefix, step);
}
bool is_checkpoint_name(std::string_view name) {
  return number_in(name, epoch_kind) >= 0 || number_in(name, step_kind) >= 0;
}

std::string checkpoints_folder(const std::string& run_folder) {
  return (fs::path(run_folder) / "checkpoints").string();
}

std::string folder_while_written(const std::string& folder) {
  return hidden(folder, written_suffix);
}

std::string folder_while_removed(const std::string& folder) {
  return hidden(folder, removed_suffix);
}

std::string PassedOver::name() const {
  return fs::path(folder).filename().string();
}

std::string text(const PassedOver& one) {
  return fmt::format("{} is passed over: {}", one.folder, one.why);
}

std::vector<ListedCheckpoint> list_checkpoints(const std::string& run_folder) {
  const std::string root = checkpoints_folder(run_folder);
  std::vector<ListedCheckpoint> found;
  std::error_code error;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;  // of a link that leads nowhere, which is no folder
    // Other names are the user's, such as copies.
    if (is_checkpoint_name(it->path().filename().string()) && it->is_directory(ignored))
      found.push_back(read_entry(it->path()));
  }
  std::error_code ignored;
  if (error == std::errc::no_such_file_or_directory && !fs::is_symlink(root, ignored)) error.clear();
  if (error) throw FileError(fmt::format("{}: cannot be read: {}", root, error.message()));
  std::sort(found.begin(), found.end(),
            [](const ListedCheckpoint& a, const ListedCheckpoint& b) { return age(a) < age(b); });
  return found;
}

std::optional<ResumePoint> find_resume_point(const std::string& run_folder,
                                             std::vector<PassedOver>* passed_over, VerifiedFiles files) {
  constexpr int attempts = 100;  // one fails only where a checkpoint was replaced meanwhile
  std::vector<ListedCheckpoint> all;
  std::optional<ResumePoint> found;
  std::vector<PassedOver> left_out;
  const auto is_gone = [](const auto& one) { return !path_exists(one.folder); };
  for (int attempt = 0; attempt < attempts; ++attempt) {
    all = list_checkpoints(run_folder);
    left_out.clear();
    for (auto one = all.rbegin(); one != all.rend() && one->manifest && !found; ++one) try {
        if (files == VerifiedFiles::all)
          verify_all(*one->manifest, one->folder);
        else
          verify(*one->manifest, one->folder, model_file);
        found = ResumePoint{one->folder, std::move(*one->manifest), true};
      } catch (const FileError& e) {
        left_out.push_back({one->folder, e.what()});
      }
    if (found) break;
    // A folder that is renamed while its parent is listed may be missing in the list.
    if (std::ranges::none_of(all, is_gone) &&
        std::ranges::equal(all, list_checkpoints(run_folder), {}, &ListedCheckpoint::folder,
                           &ListedCheckpoint::folder))
      break;
  }
  std::erase_if(left_out, is_gone);
  std::erase_if(all, is_gone);
  if (!passed_over) return found;
  for (const ListedCheckpoint& one : all)
    if (!one.error.empty() && (!found || is_named_after(one, found->manifest.position)))
      left_out.push_back({one.folder, one.error});
  *passed_over = std::move(left_out);
  return found;
}

void remove_unfinished(const std::string& run_folder) {
  std::error_code error;
  for (fs::directory_iterator it(checkpoints_folder(run_folder), error), end; !error && it != end;
       it.increment(error)) {
    const std::string file = it->path().filename().string();
    std::string_view name = file;
    if (!name.starts_with('.')) continue;
    name.remove_prefix(1);
    for (const std::string_view suffix : {written_suffix, removed_suffix})
      if (name.ends_with(suffix) && is_checkpoint_name(name.substr(0, name.size() - suffix.size())))
        remove_or_warn(it->path());
  }
}

void remove_old_checkpoints(const std::string& run_folder, const std::string& newest, std::int64_t keep,
                            const std::vector<std::string>& damaged) {
  const std::vector<ListedCheckpoint> all = list_checkpoints(run_folder);
  const auto last = std::find_if(all.begin(), all.end(),
                                 [&](const ListedCheckpoint& one) { return name_of(one) == newest; });
  if (last == all.end()) return;
  for (auto one = std::next(last); one != all.begin();) {
    --one;
    if (!one->manifest || std::ranges::count(damaged, name_of(*one)) > 0) continue;
    const bool is_kept = one->manifest->halfway ? one == last : keep-- > 0;
    if (!is_kept) remove_checkpoint(one->folder);
  }
}

}  // namespace lpsgd
