#include "trainer/checkpoint_commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <optional>

#include "core/error.h"
#include "core/paths.h"
#include "core/printable.h"
#include "core/safetensors.h"
#include "trainer/checkpoint_list.h"
#include "trainer/json_text.h"

namespace lpsgd {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

std::string name_of(const std::string& folder) {
  const fs::path path(folder);
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

std::uintmax_t bytes_in(const std::string& folder) {
  std::uintmax_t sum = 0;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::uintmax_t size = it->file_size(error);
    if (!error) sum += size;
    error.clear();
  }
  return sum;
}

std::vector<ListedCheckpoint> checkpoints_of(const std::string& run) {
  if (!is_folder(run)) throw FileError(fmt::format("{}: is no folder", run));
  return list_checkpoints(run);
}

/// The checkpoint in `folder`, or all those of the run in it.
std::vector<ListedCheckpoint> checkpoints_in(const std::string& folder) {
  if (!is_folder(folder) || !path_exists(folder + "/manifest.json")) return checkpoints_of(folder);
  try {
    return {{folder, read_manifest(folder), ""}};
  } catch (const FileError& e) {
    return {{folder, std::nullopt, e.what()}};
  }
}

ordered_json to_json(const ListedCheckpoint& one) {
  ordered_json out{{"name", name_of(one.folder)}, {"folder", one.folder}, {"bytes", bytes_in(one.folder)}};
  if (one.manifest) {
    const CheckpointManifest& m = *one.manifest;
    out.update({{"step", m.position.step},
                {"epoch", m.position.epoch},
                {"batch", m.position.batch},
                {"ranks", m.ranks},
                {"lr", m.lr}});
  } else {
    out["error"] = one.error;
  }
  return out;
}

std::string list_line(const ListedCheckpoint& one) {
  if (!one.manifest) return fmt::format("{}  cannot be read: {}\n", name_of(one.folder), one.error);
  const CheckpointManifest& m = *one.manifest;
  return fmt::format("{}  step {}, epoch {}, batch {} of {}, {} rank{}, lr {}, {:.1f} MB\n",
                     name_of(one.folder), m.position.step, m.position.epoch, m.position.batch, m.batches,
                     m.ranks, m.ranks == 1 ? "" : "s", m.lr, static_cast<double>(bytes_in(one.folder)) / 1e6);
}

/// Every mistake of one checkpoint, one a file.
std::vector<std::string> mistakes(const ListedCheckpoint& one) {
  if (!one.manifest) return {one.error};
  std::vector<std::string> out, files{model_file};
  for (int rank = 0; rank < one.manifest->ranks; ++rank) files.push_back(state_file(rank));
  for (const std::string& file : files) try {
      verify(*one.manifest, one.folder, file);
    } catch (const FileError& e) {
      out.emplace_back(e.what());
    }
  return out;
}

struct TensorDifference {
  std::string file, name, only;  // only: where a tensor is that the other has not, or whose shape differs
  std::int64_t values = 0, different = 0;
  double largest = 0, relative = 0;  // of the differences; norm of the difference over norm of A's values
};

std::optional<TensorDifference> difference(const std::string& file, const StoredTensor& a,
                                           const StoredTensor& b) {
  TensorDifference out{file, a.name, ""};
  if (a.shape != b.shape) {
    out.only = "shapes differ";
    return out;
  }
  double squares = 0, of_a = 0;
  out.values = std::ssize(a.values);
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    of_a += double{a.values[i]} * double{a.values[i]};
    if (std::bit_cast<std::uint32_t>(a.values[i]) == std::bit_cast<std::uint32_t>(b.values[i])) continue;
    const double d = std::abs(double{a.values[i]} - double{b.values[i]});
    ++out.different;
    if (d > out.largest || std::isnan(d)) out.largest = d;
    squares += d * d;
  }
  if (out.different == 0) return std::nullopt;
  out.relative = of_a > 0 ? std::sqrt(squares / of_a) : INFINITY;
  return out;
}

void compare_files(const std::string& a, const std::string& b, const std::string& file,
                   std::vector<TensorDifference>& out) {
  const bool in_a = path_exists(a + "/" + file), in_b = path_exists(b + "/" + file);
  if (!in_a && !in_b) return;
  if (in_a != in_b) {
    out.push_back({file, "", in_a ? "only in A" : "only in B"});
    return;
  }
  const SafetensorsFile first(a + "/" + file), second(b + "/" + file);
  for (const StoredTensor& tensor : first.tensors()) {
    const StoredTensor* other = second.find(tensor.name);
    if (!other)
      out.push_back({file, tensor.name, "only in A"});
    else if (auto found = difference(file, tensor, *other))
      out.push_back(std::move(*found));
  }
  for (const StoredTensor& tensor : second.tensors())
    if (!first.find(tensor.name)) out.push_back({file, tensor.name, "only in B"});
}

struct MetadataDifference {
  std::string key, a, b;
};

std::vector<MetadataDifference> compare(const CheckpointManifest& a, const CheckpointManifest& b) {
  std::vector<MetadataDifference> out;
  const auto add = [&](const std::string& key, const auto& x, const auto& y) {
    if (x != y) out.push_back({key, fmt::format("{}", x), fmt::format("{}", y)});
  };
  add("step", a.position.step, b.position.step);
  add("epoch", a.position.epoch, b.position.epoch);
  add("batch", a.position.batch, b.position.batch);
  add("ranks", a.ranks, b.ranks);
  add("seed", a.seed, b.seed);
  add("lr", a.lr, b.lr);
  add("batch_size", a.batch_size, b.batch_size);
  add("batches", a.batches, b.batches);
  add("samples", a.samples, b.samples);
  add("lengths", a.lengths, b.lengths);
  if (!a.optimizer.empty() && !b.optimizer.empty()) add("optimizer", a.optimizer, b.optimizer);
  add("halfway", a.halfway, b.halfway);
  add("local steps begun", a.sync.started, b.sync.started);
  add("local steps since a synchronisation", a.sync.steps, b.sync.steps);
  add("synchronisations within blocks", a.sync.rounds, b.sync.rounds);
  add("ranks per block", a.sync.ranks_per_block, b.sync.ranks_per_block);
  const auto pending = [](const SyncPosition& at) {
    return at.has_pending() ? fmt::format("tensors {} to {}, due after step {}", at.pending.first,
                                          at.pending.last - 1, at.pending.due)
                            : std::string("none");
  };
  add("pending mean", pending(a.sync), pending(b.sync));
  const auto add_pairs = [&](const std::string& kind, const auto& x, const auto& y) {
    const auto value = [](const auto& pairs, const std::string& key) {
      const auto at = std::find_if(pairs.begin(), pairs.end(), [&](const auto& p) { return p.first == key; });
      return at == pairs.end() ? std::string("(none)") : at->second;
    };
    for (const auto& [key, of_a] : x) add(kind + key, of_a, value(y, key));
    for (const auto& [key, of_b] : y)
      if (value(x, key) == "(none)") add(kind + key, std::string("(none)"), of_b);
  };
  add_pairs("", a.order, b.order);
  add_pairs("codec of ", a.codecs, b.codecs);
  return out;
}

std::string text(const TensorDifference& d) {
  const std::string name = printable(d.name.empty() ? d.file : d.file + " " + d.name);
  if (!d.only.empty()) return fmt::format("{}: {}\n", name, d.only);
  return fmt::format("{}: {} of {} values differ, by at most {:.3g}, by {:.3g} of the norm\n", name,
                     d.different, d.values, d.largest, d.relative);
}

/// A number that JSON has, or its name.
ordered_json number(double v) {
  return std::isfinite(v) ? ordered_json(v) : ordered_json(fmt::format("{}", v));
}

ordered_json to_json(const TensorDifference& d) {
  ordered_json out{{"file", d.file}, {"name", d.name}};
  if (!d.only.empty()) {
    out["difference"] = d.only;
    return out;
  }
  out.update({{"values", d.values},
              {"different", d.different},
              {"largest", number(d.largest)},
              {"relative", number(d.relative)}});
  return out;
}

std::pair<std::string, std::string> folders(const CheckpointArguments& arguments) {
  if (arguments.b.empty()) return {arguments.run, arguments.a};
  const std::string root = checkpoints_folder(arguments.run) + "/";
  return {root + arguments.a, root + arguments.b};
}

}  // namespace

CheckpointReport checkpoint_list_command(const CheckpointArguments& arguments) {
  const std::vector<ListedCheckpoint> all = checkpoints_of(arguments.run);
  ordered_json list = ordered_json::array();
  std::string lines;
  for (const ListedCheckpoint& one : all) {
    list.push_back(to_json(one));
    lines += list_line(one);
  }
  if (arguments.json) return {json_text(list, 2) + "\n"};
  return {lines.empty() ? fmt::format("{}: holds no checkpoint\n", arguments.run) : lines};
}

CheckpointReport checkpoint_verify_command(const CheckpointArguments& arguments) {
  const std::vector<ListedCheckpoint> all = checkpoints_in(arguments.run);
  CheckpointReport out{"", all.empty() ? 1 : 0};
  ordered_json list = ordered_json::array();
  std::string lines = all.empty() ? fmt::format("{}: holds no checkpoint\n", arguments.run) : "";
  for (const ListedCheckpoint& one : all) {
    const std::vector<std::string> found = mistakes(one);
    if (!found.empty()) out.status = 1;
    list.push_back({{"name", name_of(one.folder)}, {"verifies", found.empty()}, {"errors", found}});
    if (found.empty()) lines += fmt::format("{}: verifies\n", name_of(one.folder));
    for (const std::string& mistake : found) lines += fmt::format("{}: {}\n", name_of(one.folder), mistake);
  }
  out.text = arguments.json ? json_text(list, 2) + "\n" : lines;
  return out;
}

CheckpointReport checkpoint_diff_command(const CheckpointArguments& arguments) {
  const auto [a, b] = folders(arguments);
  const CheckpointManifest of_a = read_manifest(a), of_b = read_manifest(b);
  const std::vector<MetadataDifference> metadata = compare(of_a, of_b);
  std::vector<TensorDifference> tensors;
  compare_files(a, b, model_file, tensors);
  for (int rank = 0; rank < std::max(of_a.ranks, of_b.ranks); ++rank)
    compare_files(a, b, state_file(rank), tensors);
  CheckpointReport out;
  ordered_json keys = ordered_json::array(), list = ordered_json::array();
  std::string lines;
  for (const MetadataDifference& d : metadata) {
    keys.push_back({{"key", d.key}, {"a", d.a}, {"b", d.b}});
    lines += printable(fmt::format("{}: {} and {}", d.key, d.a, d.b)) + "\n";
  }
  for (const TensorDifference& d : tensors) {
    list.push_back(to_json(d));
    lines += text(d);
  }
  if (lines.empty()) lines = "no difference\n";
  out.text = arguments.json ? json_text({{"a", a}, {"b", b}, {"metadata", keys}, {"tensors", list}}, 2) + "\n"
                            : lines;
  return out;
}

}  // namespace lpsgd
