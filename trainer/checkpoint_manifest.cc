#include "trainer/checkpoint_manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/checksum.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/printable.h"
#include "trainer/json_text.h"

namespace lpsgd {

using nlohmann::ordered_json;

namespace {

constexpr int manifest_format = 1;
constexpr std::uint64_t max_bytes = 16 << 20;  // of a manifest

std::string text_checksum(const std::string& text) {
  return checksum(std::as_bytes(std::span(text)));
}

/// The checksum of all but the checksum itself.
std::string manifest_checksum(ordered_json manifest) {
  manifest.erase("checksum");
  return text_checksum(json_text(manifest));
}

ordered_json to_json(const BatchMetrics& m) {
  return {{"loss", m.loss}, {"top1", m.top1}, {"top5", m.top5}, {"samples", m.samples}};
}

constexpr std::uint64_t max_count = std::uint64_t{1} << 48;

ordered_json parse_manifest(const std::string& folder) {
  const std::string path = folder + "/manifest.json";
  ordered_json manifest = parse_json(read_file(path, max_bytes), path + ": is not a checkpoint's manifest");
  if (!manifest.is_object()) throw FileError(fmt::format("{}: is not a checkpoint's manifest", path));
  if (!manifest.contains("format") || manifest["format"] != manifest_format)
    throw FileError(fmt::format("{}: is not a manifest of format {}", path, manifest_format));
  if (!manifest.contains("checksum") || manifest["checksum"] != manifest_checksum(manifest))
    throw FileError(fmt::format("{}: is damaged: its checksum is not its own", path));
  return manifest;
}

}  // namespace

CheckpointManifest read_manifest(const std::string& folder) {
  const ordered_json m = parse_manifest(folder);
  CheckpointManifest out;
  try {
    const std::string source = folder + "/manifest.json";
    const auto count = [&](const ordered_json& number, std::uint64_t max = max_count) {
      return whole_number(number, source, max);
    };
    const auto bytes = [&](const ordered_json& number) {
      return static_cast<std::uint64_t>(whole_number(number, source));
    };
    const ordered_json& data = m.at("data");
    out.position = {count(m.at("step")), count(m.at("epoch")), count(data.at("batch"))};
    out.ranks = static_cast<int>(count(m.at("ranks"), 1'000'000));
    out.seed = static_cast<std::uint32_t>(count(m.at("seeds").at("run"), 0xffffffffu));
    if (const auto optimizer = m.find("optimizer"); optimizer != m.end())
      out.optimizer = optimizer->at("kind");
    out.lr = m.at("schedule").at("lr");
    if (const auto halfway = m.find("halfway"); halfway != m.end()) out.halfway = halfway->get<bool>();
    out.batch_size = count(data.at("batch_size"));
    out.batches = count(data.at("batches"));
    if (const auto samples = data.find("samples"); samples != data.end()) out.samples = count(*samples);
    if (const auto lengths = data.find("lengths"); lengths != data.end()) out.lengths = *lengths;
    if (const auto order = data.find("order"); order != data.end())  // older ones have none
      for (const auto& [key, value] : order->items()) out.order.emplace_back(key, value.get<std::string>());
    const ordered_json& so_far = m.at("epoch_so_far");
    for (const ordered_json& rank : so_far.at("train")) {
      const ordered_json& loss = rank.at("loss");  // null, if it was not finite
      out.so_far.train.push_back({loss.is_null() ? 0 : loss.get<double>(), count(rank.at("top1")),
                                  count(rank.at("top5")), count(rank.at("samples"))});
    }
    so_far.at("seconds").get_to(out.so_far.seconds);
    if (const auto counts = so_far.find("sequences"); counts != so_far.end())
      out.so_far.sequences = {count(counts->at("count")), count(counts->at("room"))};
    out.so_far.bytes_sent = bytes(so_far.at("bytes_sent"));
    out.so_far.bytes_fp32 = bytes(so_far.at("bytes_fp32"));
    if (const auto bad = so_far.find("bad_samples"); bad != so_far.end())
      out.so_far.bad_samples = count(*bad);
    if (const auto sums = so_far.find("sync"); sums != so_far.end()) {
      out.so_far.exchanges = count(sums->at("synchronisations"));
      out.so_far.distance = {sums->at("deviation"), sums->at("change")};
      out.so_far.bytes_average = bytes(sums->at("bytes_average"));
    }
    if (const auto between = so_far.find("bytes_between_blocks"); between != so_far.end())
      out.so_far.bytes_between = bytes(*between);
    if (const auto exchange = m.find("exchange"); exchange != m.end())
      out.exchange_ranks_per_block = count(exchange->at("ranks_per_block"), 1'000'000);
    if (const auto sync = m.find("sync"); sync != m.end()) {
      out.sync = {true, count(sync->at("local_steps")), 0};
      if (const auto rounds = sync->find("block_rounds"); rounds != sync->end())
        out.sync.rounds = count(*rounds);
      if (const auto ranks = sync->find("ranks_per_block"); ranks != sync->end())
        out.sync.ranks_per_block = count(*ranks);
      if (const auto streams = sync->find("streams"); streams != sync->end())
        out.sync.streams = streams->get<bool>();
      if (const auto pending = sync->find("pending"); pending != sync->end())
        out.sync.pending = {count(pending->at("first_tensor")), count(pending->at("end_tensor")),
                            count(pending->at("due"))};
    }
    for (const auto& [name, codec] : m.at("codecs").items())
      out.codecs.emplace_back(name, codec.get<std::string>());
    for (const auto& [name, sum] : m.at("files").items())
      out.files.emplace_back(name, sum.get<std::string>());
  } catch (const ordered_json::exception& e) {
    throw FileError(
        fmt::format("{}/manifest.json: is not a checkpoint's manifest: {}", folder, printable(e.what())));
  }
  const auto impossible = [&](const std::string& what) {
    throw FileError(fmt::format("{}/manifest.json: {}", folder, what));
  };
  if (out.ranks < 1) impossible("names no ranks");
  if (out.exchange_ranks_per_block < 1 || out.ranks % out.exchange_ranks_per_block != 0)
    impossible(fmt::format("{} ranks in blocks of {}", out.ranks, out.exchange_ranks_per_block));
  if (out.batch_size < out.ranks)
    impossible(fmt::format("a batch of {} samples for {} ranks", out.batch_size, out.ranks));
  if (const SyncPosition::Pending& p = out.sync.pending;
      p != SyncPosition::Pending{} &&
      (p.first >= p.last || p.last > static_cast<std::int64_t>(out.codecs.size())))
    impossible(fmt::format("the changes of tensors {} to {} are pending", p.first, p.last));
  if (out.position.batch > out.batches)
    impossible(fmt::format("batch {} of an epoch of {}", out.position.batch, out.batches));
  return out;
}

std::string state_file(int rank) {
  return fmt::format("state-rank{:04}.safetensors", rank);
}

void verify(const CheckpointManifest& manifest, const std::string& folder, const std::string& name) {
  const auto file = std::find_if(manifest.files.begin(), manifest.files.end(),
                                 [&](const auto& one) { return one.first == name; });
  if (file == manifest.files.end())
    throw FileError(fmt::format("{}/manifest.json: names no file {}", folder, name));
  const std::string path = folder + "/" + name;
  if (file_checksum(path) != file->second)
    throw FileError(fmt::format("{}: is damaged: its checksum is not the manifest's", path));
}

void verify_all(const CheckpointManifest& manifest, const std::string& folder) {
  verify(manifest, folder, model_file);
  for (int rank = 0; rank < manifest.ranks; ++rank) verify(manifest, folder, state_file(rank));
}

void write_manifest(const std::string& folder, const CheckpointManifest& manifest) {
  ordered_json m;
  m["format"] = manifest_format;
  m["step"] = manifest.position.step;
  m["epoch"] = manifest.position.epoch;
  m["ranks"] = manifest.ranks;
  m["seeds"] = {{"run", manifest.seed}};
  if (!manifest.optimizer.empty()) m["optimizer"] = {{"kind", manifest.optimizer}};
  m["schedule"] = {{"lr", manifest.lr}};
  if (manifest.halfway) m["halfway"] = true;
  m["data"] = {{"epoch", manifest.position.epoch},
               {"batch", manifest.position.batch},
               {"batches", manifest.batches},
               {"batch_size", manifest.batch_size}};
  if (manifest.samples > 0) m["data"]["samples"] = manifest.samples;
  if (!manifest.lengths.empty()) m["data"]["lengths"] = manifest.lengths;
  for (const auto& [key, value] : manifest.order) m["data"]["order"][key] = value;
  ordered_json train = ordered_json::array();
  for (const BatchMetrics& rank : manifest.so_far.train) train.push_back(to_json(rank));
  m["epoch_so_far"] = {{"train", std::move(train)},
                       {"seconds", manifest.so_far.seconds},
                       {"bytes_sent", manifest.so_far.bytes_sent},
                       {"bytes_fp32", manifest.so_far.bytes_fp32}};
  if (manifest.so_far.bad_samples > 0) m["epoch_so_far"]["bad_samples"] = manifest.so_far.bad_samples;
  if (const SequenceCounts& counts = manifest.so_far.sequences; counts.room > 0)
    m["epoch_so_far"]["sequences"] = {{"count", counts.sequences}, {"room", counts.room}};
  if (const EpochSoFar& sums = manifest.so_far; sums.exchanges > 0 || sums.bytes_average > 0)
    m["epoch_so_far"]["sync"] = {{"synchronisations", sums.exchanges},
                                 {"deviation", sums.distance.deviation},
                                 {"change", sums.distance.change},
                                 {"bytes_average", sums.bytes_average}};
  if (manifest.so_far.bytes_between > 0)
    m["epoch_so_far"]["bytes_between_blocks"] = manifest.so_far.bytes_between;
  if (manifest.exchange_ranks_per_block > 1)
    m["exchange"] = {{"ranks_per_block", manifest.exchange_ranks_per_block}};
  if (manifest.sync.started) m["sync"] = {{"local_steps", manifest.sync.steps}};
  if (manifest.sync.rounds > 0) m["sync"]["block_rounds"] = manifest.sync.rounds;
  if (manifest.sync.started && manifest.sync.ranks_per_block > 0)
    m["sync"]["ranks_per_block"] = manifest.sync.ranks_per_block;
  if (manifest.sync.started && manifest.sync.streams) m["sync"]["streams"] = true;
  if (manifest.sync.has_pending())
    m["sync"]["pending"] = {{"first_tensor", manifest.sync.pending.first},
                            {"end_tensor", manifest.sync.pending.last},
                            {"due", manifest.sync.pending.due}};
  ordered_json& codecs = m["codecs"] = ordered_json::object();
  for (const auto& [name, codec] : manifest.codecs) codecs[name] = codec;
  ordered_json& files = m["files"] = ordered_json::object();
  for (const auto& [name, sum] : manifest.files) files[name] = sum;
  m["checksum"] = manifest_checksum(m);
  write_file(folder + "/manifest.json", json_text(m, 2) + "\n");
}

}  // namespace lpsgd
