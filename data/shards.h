// Shards: the images of one split in one file, which is mapped into memory. docs/data.md has the format.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/replacement_file.h"
#include "data/dataset.h"

namespace lpsgd {

/// Of the whole shard.
struct ShardInfo {
  std::string dataset;  // whose images these are: `data.dataset`
  Split split = Split::train;
  std::int64_t classes = 0;
  std::vector<std::string> class_names = {};  // by label; empty: they have none
};

/// Writes a shard sample by sample. The file appears under its name when finish() has synced it; without
/// that, nothing is left. All functions throw FileError.
class ShardWriter {
 public:
  ShardWriter(const std::string& path, ShardInfo info);

  /// Adds a sample. `name` is what messages call it.
  void add(const StoredImage& image, std::int32_t label, const std::string& name);
  void finish();

 private:
  void write(std::span<const std::uint8_t> bytes);
  void align();

  ShardInfo info_;
  ReplacementFile file_;
  std::uint64_t at_ = 0;
  std::vector<std::uint8_t> index_;
  std::string names_;
  std::uint64_t samples_ = 0;
};

/// Opens `shards`, a shard or all shards of one split in a folder (files *.shard, in the order of their
/// names), as one data set. Checks headers, sizes and the indices' checksums. A sample's checksum is compared
/// when it is first read; FileError if it differs. Throws FileError if a file is missing, truncated, damaged,
/// of another version or of another data set, or if there is none of `split`.
std::shared_ptr<const ImageDataset> open_shards(const DataOptions& options, Split split);

}  // namespace lpsgd
