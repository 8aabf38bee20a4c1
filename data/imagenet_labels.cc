#include "data/imagenet_labels.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/paths.h"
#include "data/input_file.h"
#include "data/mat_file.h"

namespace lpsgd {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t most_bytes = 64 << 20;  // of a list; Kaggle's has 2.6 MB
constexpr const char* truth_name = "ILSVRC2012_validation_ground_truth.txt";
constexpr const char* kaggle_name = "LOC_val_solution.csv";

/// Calls body(line, number from 1) with every line, without its end.
void for_lines(std::string_view text, const std::function<void(std::string_view, std::int64_t)>& body) {
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    body(line, number);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
}

[[noreturn]] void refuse(const std::string& path, std::int64_t line, std::string_view found,
                         const std::string& expected) {
  throw FileError(fmt::format("{}:{}: '{}', expected {}", path, line, found.substr(0, 60), expected));
}

std::string read_text(const fs::path& path) {
  std::vector<std::uint8_t> bytes;
  read_whole_file(path.string(), most_bytes, bytes);
  return {bytes.begin(), bytes.end()};
}

/// The WNID of every ILSVRC2012_ID, from the files beside the ground truth or in `root`.
std::map<std::int64_t, std::string> read_ids(const fs::path& root, const fs::path& beside) {
  for (const fs::path& folder : {beside, root}) {
    if (!path_exists(folder / "meta.mat")) continue;
    std::map<std::int64_t, std::string> out;
    for (const Synset& synset : read_meta_mat((folder / "meta.mat").string())) out[synset.id] = synset.wnid;
    return out;
  }
  for (const fs::path& folder : {beside, root})
    if (path_exists(folder / "synsets.txt"))
      return parse_synset_list(read_text(folder / "synsets.txt"), (folder / "synsets.txt").string());
  throw FileError(fmt::format("{}: missing: it, or synsets.txt, gives the class of each ILSVRC2012_ID in {}",
                              (beside / "meta.mat").string(), truth_name));
}

}  // namespace

bool is_wnid(const std::string& name) {
  return name.size() == 9 && name[0] == 'n' && name.find_first_not_of("0123456789", 1) == std::string::npos;
}

std::map<std::string, std::string> parse_ground_truth(const std::string& text, const std::string& path,
                                                      const std::map<std::int64_t, std::string>& wnid_of_id) {
  std::map<std::string, std::string> out;
  for_lines(text, [&](std::string_view line, std::int64_t number) {
    std::int64_t id = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), id);
    const auto found = wnid_of_id.find(id);
    if (error != std::errc() || end != line.data() + line.size() || found == wnid_of_id.end())
      refuse(path, number, line,
             fmt::format("one of the {} ILSVRC2012_IDs ({} to {}) in meta.mat or synsets.txt",
                         wnid_of_id.size(), wnid_of_id.begin()->first, wnid_of_id.rbegin()->first));
    out.emplace(fmt::format("ILSVRC2012_val_{:08}", number), found->second);
  });
  if (out.empty()) throw FileError(fmt::format("{}: empty", path));
  return out;
}

std::map<std::int64_t, std::string> parse_synset_list(const std::string& text, const std::string& path) {
  std::map<std::int64_t, std::string> out;
  bool is_sorted = true;
  for_lines(text, [&](std::string_view line, std::int64_t number) {
    const std::string wnid(line.substr(0, line.find(' ')));
    if (!is_wnid(wnid)) refuse(path, number, line, "a WNID, such as n01440764");
    is_sorted = is_sorted && (out.empty() || out.rbegin()->second < wnid);
    out.emplace(number, wnid);
  });
  if (out.empty()) throw FileError(fmt::format("{}: empty", path));
  if (is_sorted && out.size() >= 1000)
    throw FileError(fmt::format(
        "{}: in the order of WNIDs, but the development kit numbers classes in another order, which its "
        "meta.mat has",
        path));
  return out;
}

std::map<std::string, std::string> parse_kaggle_list(const std::string& text, const std::string& path) {
  std::map<std::string, std::string> out;
  for_lines(text, [&](std::string_view line, std::int64_t number) {
    if (number == 1 && line == "ImageId,PredictionString") return;
    const std::size_t comma = line.find(',');
    const std::string wnid(comma == std::string_view::npos ? "" : line.substr(comma + 1, 9));
    if (!is_wnid(wnid)) refuse(path, number, line, "IMAGE,WNID and a box");
    if (!out.emplace(line.substr(0, comma), wnid).second) refuse(path, number, line, "each image once");
  });
  if (out.empty()) throw FileError(fmt::format("{}: empty", path));
  return out;
}

ValidationLabels read_validation_labels(const std::string& root) {
  const fs::path folder = root;
  for (const fs::path& beside : {folder / "ILSVRC2012_devkit_t12" / "data", folder}) {
    if (!path_exists(beside / truth_name)) continue;
    const std::string path = (beside / truth_name).string();
    return {path, parse_ground_truth(read_text(path), path, read_ids(folder, beside))};
  }
  const std::string kaggle = (folder / kaggle_name).string();
  if (path_exists(kaggle)) return {kaggle, parse_kaggle_list(read_text(kaggle), kaggle)};
  throw FileError(fmt::format(
      "{}: holds no labels of the validation images: expected ILSVRC2012_devkit_t12/data/{}, {} or {}", root,
      truth_name, truth_name, kaggle_name));
}

}  // namespace lpsgd
