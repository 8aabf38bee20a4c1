#include "trainer/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <tuple>

#include "comm/agree.h"
#include "core/checksum.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/safetensors.h"

namespace lpsgd {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

constexpr int manifest_format = 1;

std::string state_name(int rank) {
  return fmt::format("state-rank{:04}.safetensors", rank);
}

std::string file_checksum(const std::string& path) {
  const std::string bytes = read_file(path);
  return checksum(std::as_bytes(std::span(bytes)));
}

void check(const std::error_code& error, const fs::path& path, const char* what) {
  if (error) throw FileError(fmt::format("{}: {}: {}", path.string(), what, error.message()));
}

ordered_json to_json(const BatchMetrics& m) {
  return {{"loss", m.loss}, {"top1", m.top1}, {"top5", m.top5}, {"samples", m.samples}};
}

ordered_json to_json(const Seconds& s);
ordered_json to_json(const SecondsOfRanks& s) {
  return {{"mean", to_json(s.mean)}, {"min", to_json(s.min)}, {"max", to_json(s.max)}};
}

ordered_json to_json(const Seconds& s) {
  return {{"total", s.total},
          {"data", s.data},
          {"forward", s.forward},
          {"backward", s.backward},
          {"encode", s.encode},
          {"transfer", s.transfer},
          {"decode", s.decode},
          {"exposed_comm", s.exposed_comm},
          {"exposed_codec", s.exposed_codec},
          {"update", s.update},
          {"eval", s.eval}};
}

void from_json(const ordered_json& j, BatchMetrics& m) {
  m = {j.at("loss").is_null() ? 0 : j.at("loss").get<double>(), j.at("top1"), j.at("top5"), j.at("samples")};
}

void from_json(const ordered_json& j, Seconds& s) {
  s = {j.at("total"),         j.at("data"),     j.at("forward"), j.at("backward"),
       j.at("encode"),        j.at("transfer"), j.at("decode"),  j.at("exposed_comm"),
       j.at("exposed_codec"), j.at("update"),   j.at("eval")};
}

/// Of everything but the checksum itself.
std::string manifest_checksum(ordered_json manifest) {
  manifest.erase("checksum");
  const std::string text = manifest.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  return checksum(std::as_bytes(std::span(text)));
}

void from_json(const ordered_json& j, SecondsOfRanks& s) {
  from_json(j.at("mean"), s.mean);
  from_json(j.at("min"), s.min);
  from_json(j.at("max"), s.max);
}

ordered_json parse_manifest(const std::string& folder) {
  const std::string path = folder + "/manifest.json";
  ordered_json manifest = ordered_json::parse(read_file(path), nullptr, false);
  if (!manifest.is_object()) throw FileError(fmt::format("{}: is not a checkpoint's manifest", path));
  if (!manifest.contains("format") || manifest["format"] != manifest_format)
    throw FileError(fmt::format("{}: is not a manifest of format {}", path, manifest_format));
  if (!manifest.contains("checksum") || manifest["checksum"] != manifest_checksum(manifest))
    throw FileError(fmt::format("{}: is damaged: its checksum is not its own", path));
  return manifest;
}

/// Opens a file of the checkpoint after comparing its checksum with the manifest's.
void verify(const std::string& folder, const ordered_json& manifest, const std::string& name) {
  const std::string path = folder + "/" + name;
  const auto files = manifest.find("files");
  if (files == manifest.end() || !files->is_object() || !files->contains(name) || !(*files)[name].is_string())
    throw FileError(fmt::format("{}/manifest.json: names no file {}", folder, name));
  if (file_checksum(path) != (*files)[name].get<std::string>())
    throw FileError(fmt::format("{}: is damaged: its checksum is not the manifest's", path));
}

void write_model(const std::string& path, const TrainingState& state,
                 const std::vector<NamedBuffer>& buffers) {
  std::vector<std::vector<float>> turned(state.tensors->size());
  std::vector<StoredTensor> stored;
  for (std::size_t t = 0; t < state.tensors->size(); ++t) {
    const TensorInfo& tensor = (*state.tensors)[t];
    turned[t].resize(static_cast<std::size_t>(tensor.elements));
    to_pytorch_order(tensor, state.parameters.data() + tensor.offset, turned[t].data());
    stored.push_back({tensor.name, tensor.shape, turned[t]});
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
  write_safetensors(path, stored, {{"format", "pt"}});
}

void write_state(const std::string& path, const TrainingState& state, int rank) {
  std::vector<StoredTensor> stored;
  const auto flat = [&](const std::string& prefix, const std::string& name, std::span<const float> values) {
    if (!values.empty())
      stored.push_back({prefix + name, {static_cast<std::int64_t>(values.size())}, values});
  };
  for (std::size_t t = 0; t < state.tensors->size(); ++t) {
    const TensorInfo& tensor = (*state.tensors)[t];
    if (rank == 0)
      flat("momentum.", tensor.name,
           std::span<const float>(state.momentum)
               .subspan(static_cast<std::size_t>(tensor.offset), static_cast<std::size_t>(tensor.elements)));
    flat("residual1.", tensor.name, state.residuals.round1[t]);
    flat("residual2.", tensor.name, state.residuals.round2[t]);
  }
  for (const NamedBuffer& b : state.buffers) stored.push_back({"buffer." + b.name, b.shape, b.values});
  write_safetensors(path, stored, {{"rank", std::to_string(rank)}});
}

void write_manifest(const std::string& folder, const CheckpointMeta& meta,
                    const std::vector<TensorInfo>& tensors) {
  ordered_json m;
  m["format"] = manifest_format;
  m["step"] = meta.position.step;
  m["epoch"] = meta.position.epoch;
  m["ranks"] = meta.ranks;
  m["seeds"] = {{"run", meta.seed}};
  m["schedule"] = {{"lr", meta.lr}};
  m["data"] = {{"epoch", meta.position.epoch},
               {"batch", meta.position.batch},
               {"batches", meta.batches},
               {"batch_size", meta.batch_size}};
  ordered_json train = ordered_json::array();
  for (const BatchMetrics& rank : meta.so_far.train) train.push_back(to_json(rank));
  m["epoch_so_far"] = {{"train", std::move(train)},
                       {"seconds", to_json(meta.so_far.seconds)},
                       {"bytes_sent", meta.so_far.bytes_sent},
                       {"bytes_fp32", meta.so_far.bytes_fp32}};
  ordered_json& codecs = m["codecs"] = ordered_json::object();
  for (std::size_t t = 0; t < tensors.size(); ++t) codecs[tensors[t].name] = meta.codecs[t];
  ordered_json& files = m["files"] = ordered_json::object();
  files["model.safetensors"] = file_checksum(folder + "/model.safetensors");
  for (int r = 0; r < meta.ranks; ++r) files[state_name(r)] = file_checksum(folder + "/" + state_name(r));
  m["checksum"] = manifest_checksum(m);
  write_file(folder + "/manifest.json", m.dump(2) + "\n");
}

/// One old rank's state file.
struct OldState {
  ExchangeState residuals;
  std::vector<std::vector<float>> buffers;
};

OldState read_state(const std::string& folder, const ordered_json& manifest, int rank,
                    const std::vector<TensorInfo>& tensors, const std::vector<NamedBuffer>& buffers,
                    std::span<float> momentum) {
  verify(folder, manifest, state_name(rank));
  const SafetensorsFile file(folder + "/" + state_name(rank));
  OldState out;
  const auto copy = [](std::span<const float> from) { return std::vector<float>(from.begin(), from.end()); };
  for (const TensorInfo& tensor : tensors) {
    if (!momentum.empty()) {
      const StoredTensor& m = file.at("momentum." + tensor.name, {tensor.elements});
      std::copy(m.values.begin(), m.values.end(), momentum.begin() + tensor.offset);
    }
    const StoredTensor* r1 = file.find("residual1." + tensor.name);
    const StoredTensor* r2 = file.find("residual2." + tensor.name);
    out.residuals.round1.push_back(r1 ? copy(r1->values) : std::vector<float>{});
    out.residuals.round2.push_back(r2 ? copy(r2->values) : std::vector<float>{});
  }
  for (const NamedBuffer& b : buffers)
    out.buffers.push_back(copy(file.at("buffer." + b.name, b.shape).values));
  return out;
}

bool is_checkpoint_name(std::string_view name) {
  for (const auto& [prefix, digits] : {std::pair{"epoch-", 4u}, std::pair{"step-", 6u}}) {
    if (!name.starts_with(prefix)) continue;
    const std::string_view rest = name.substr(std::string_view(prefix).size());
    return rest.size() >= digits && rest.find_first_not_of("0123456789") == std::string_view::npos;
  }
  return false;
}

/// All complete checkpoints, oldest first.
std::vector<fs::path> all_checkpoints(const fs::path& root) {
  std::vector<std::tuple<std::int64_t, std::int64_t, fs::path>> found;
  std::error_code error;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    // Others are the user's own, such as copies; a folder without a manifest is no checkpoint.
    if (!is_checkpoint_name(name) || !fs::exists(it->path() / "manifest.json")) continue;
    const CheckpointMeta meta = read_manifest(it->path().string());
    found.emplace_back(meta.position.step, meta.position.epoch, it->path());
  }
  if (error && error != std::errc::no_such_file_or_directory) check(error, root, "cannot be read");
  std::sort(found.begin(), found.end());
  std::vector<fs::path> out;
  for (auto& [step, epoch, path] : found) out.push_back(std::move(path));
  return out;
}

}  // namespace

std::string epoch_checkpoint_name(std::int64_t epoch) {
  return fmt::format("epoch-{:04}", epoch);
}
std::string step_checkpoint_name(std::int64_t step) {
  return fmt::format("step-{:06}", step);
}

std::optional<std::string> CheckpointFolder::newest() const {
  const std::vector<fs::path> all = all_checkpoints(root_);
  if (all.empty()) return std::nullopt;
  return all.back().string();
}

CheckpointMeta read_manifest(const std::string& folder) {
  const ordered_json m = parse_manifest(folder);
  CheckpointMeta meta;
  try {
    const auto count = [&](const ordered_json& number, std::uint64_t most = std::uint64_t{1} << 48) {
      if (!number.is_number_unsigned() || number.get<std::uint64_t>() > most)
        throw FileError(fmt::format("{}/manifest.json: {} is an impossible number", folder, number.dump()));
      return number.get<std::int64_t>();
    };
    const ordered_json& data = m.at("data");
    meta.position = {count(m.at("step")), count(m.at("epoch")), count(data.at("batch"))};
    meta.ranks = static_cast<int>(count(m.at("ranks"), 1'000'000));
    meta.seed = static_cast<std::uint32_t>(count(m.at("seeds").at("run"), 0xffffffffu));
    meta.lr = m.at("schedule").at("lr");
    meta.batch_size = count(data.at("batch_size"));
    meta.batches = count(data.at("batches"));
    const ordered_json& so_far = m.at("epoch_so_far");
    for (const ordered_json& rank : so_far.at("train")) from_json(rank, meta.so_far.train.emplace_back());
    from_json(so_far.at("seconds"), meta.so_far.seconds);
    meta.so_far.bytes_sent = so_far.at("bytes_sent");
    meta.so_far.bytes_fp32 = so_far.at("bytes_fp32");
    for (const auto& [name, codec] : m.at("codecs").items()) meta.codecs.push_back(codec.get<std::string>());
  } catch (const ordered_json::exception& e) {
    throw FileError(fmt::format("{}/manifest.json: is not a checkpoint's manifest: {}", folder, e.what()));
  }
  if (meta.ranks < 1) throw FileError(fmt::format("{}/manifest.json: names no ranks", folder));
  return meta;
}

void CheckpointFolder::write(Transport& transport, const std::string& name, const CheckpointMeta& meta,
                             const TrainingState& state, const std::vector<NamedBuffer>& averaged,
                             std::int64_t keep) const {
  const fs::path target = fs::path(root_) / name;
  const fs::path building = fs::path(root_) / ("." + name + ".tmp");
  const bool first = transport.rank() == 0;
  std::error_code error;
  try {
    collective_try(transport, [&] {
      if (!first) return;
      fs::remove_all(building, error);
      check(error, building, "cannot be removed");
      fs::create_directories(building, error);
      check(error, building, "cannot be made");
    });
    collective_try(transport, [&] {
      if (first) write_model((building / "model.safetensors").string(), state, averaged);
      write_state((building / state_name(transport.rank())).string(), state, transport.rank());
    });
    collective_try(transport, [&] {
      if (!first) return;
      write_manifest(building.string(), meta, *state.tensors);
      sync_folder(building.string());
      // A checkpoint of this name is left over when a run was resumed from an older one: the two change
      // places.
      const bool replaces = fs::exists(target, error);
      if (::renameat2(AT_FDCWD, building.c_str(), AT_FDCWD, target.c_str(), replaces ? RENAME_EXCHANGE : 0) !=
          0)
        check({errno, std::generic_category()}, target, "cannot be renamed into place");
      if (replaces) fs::remove_all(building, error);
      sync_folder(root_);
      const std::vector<fs::path> all = all_checkpoints(root_);
      for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < all.size(); ++i) {
        if (all[i] == target) continue;
        fs::remove_all(all[i], error);
        check(error, all[i], "cannot be removed");
      }
    });
  } catch (...) {
    if (first) fs::remove_all(building, error);
    throw;
  }
}

void read_model(const std::string& path, const std::vector<TensorInfo>& tensors, std::span<float> parameters,
                const std::vector<NamedBuffer>& buffers) {
  const SafetensorsFile file(path);
  for (const TensorInfo& tensor : tensors)
    from_pytorch_order(tensor, file.at(tensor.name, tensor.shape).values.data(),
                       parameters.data() + tensor.offset);
  for (const NamedBuffer& b : buffers) {
    const std::span<const float> values = file.at(b.name, b.shape).values;
    std::copy(values.begin(), values.end(), b.values.begin());
  }
  for (const StoredTensor& stored : file.tensors()) {
    const auto named = [&](const auto& x) { return x.name == stored.name; };
    if (std::none_of(tensors.begin(), tensors.end(), named) &&
        std::none_of(buffers.begin(), buffers.end(), named))
      throw FileError(fmt::format("{}: holds '{}', which the network does not have", path, stored.name));
  }
}

bool read_checkpoint(const std::string& folder, const CheckpointMeta& meta, int rank, int ranks,
                     const std::vector<CodecSpec>& codecs, TrainingState& state) {
  const ordered_json manifest = parse_manifest(folder);
  const std::vector<TensorInfo>& tensors = *state.tensors;
  const ordered_json& written = manifest.at("codecs");
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::string now = to_text(codecs[t]);
    if (!written.contains(tensors[t].name))
      throw FileError(
          fmt::format("{}: is of another network: it has no tensor '{}'", folder, tensors[t].name));
    if (written[tensors[t].name] != now)
      throw FileError(fmt::format(
          "{}: was written with codec {} for '{}', the configuration says {}: their residuals differ", folder,
          written[tensors[t].name].get<std::string>(), tensors[t].name, now));
  }
  verify(folder, manifest, "model.safetensors");
  read_model(folder + "/model.safetensors", tensors, state.parameters, state.buffers);

  const bool same = meta.ranks == ranks;
  std::vector<OldState> old;
  for (int r = 0; r < meta.ranks; ++r) {
    if (same && r != rank && r != 0) continue;  // rank 0's file holds the momentum
    OldState one =
        read_state(folder, manifest, r, tensors, state.buffers, r == 0 ? state.momentum : std::span<float>{});
    if (!same || r == rank) old.push_back(std::move(one));
  }
  if (same) {
    state.residuals = std::move(old[0].residuals);
    for (std::size_t b = 0; b < state.buffers.size(); ++b)
      std::copy(old[0].buffers[b].begin(), old[0].buffers[b].end(), state.buffers[b].values.begin());
    return false;
  }
  // model.safetensors already gave the averaged running statistics.
  std::vector<ExchangeState> residuals;
  for (OldState& one : old) residuals.push_back(std::move(one.residuals));
  state.residuals = redistribute(residuals, tensors, codecs, ranks)[static_cast<std::size_t>(rank)];
  return true;
}

void read_checkpoint_model(const std::string& folder, const std::vector<TensorInfo>& tensors,
                           std::span<float> parameters, const std::vector<NamedBuffer>& buffers) {
  std::string at = folder;
  if (!fs::exists(at + "/model.safetensors") && fs::is_directory(at + "/checkpoints")) {
    const std::optional<std::string> newest = CheckpointFolder(folder).newest();
    if (!newest) throw FileError(fmt::format("{}: holds no checkpoint", folder));
    at = *newest;
  }
  if (fs::exists(at + "/manifest.json")) verify(at, parse_manifest(at), "model.safetensors");
  read_model(at + "/model.safetensors", tensors, parameters, buffers);
}

}  // namespace lpsgd
