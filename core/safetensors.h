// Safetensors files (https://huggingface.co/docs/safetensors): an 8-byte little-endian header length, a JSON
// header, then the tensors' bytes. Read by memory map, written whole, synced.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/buffer.h"

namespace lpsgd {

/// A float32 tensor of a safetensors file.
struct StoredTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::span<const float> values;
};

/// A file open for reading; views stay valid as long as it lives. Only dtype F32 is accepted.
class SafetensorsFile {
 public:
  /// FileError "path: what is wrong" on anything that is not a well-formed file: header past the end,
  /// overlapping offsets, sizes that do not match shapes, duplicate names, invalid UTF-8 or
  /// JSON.
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // in the order of their bytes
  const StoredTensor* find(const std::string& name) const;
  /// FileError naming the file, the tensor and both shapes when it is absent or has another shape.
  const StoredTensor& at(const std::string& name, const std::vector<std::int64_t>& shape) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  void* map_ = nullptr;
  std::size_t bytes_ = 0;
  Buffer<std::byte> aligned_;  // a copy of the data, where the file's is not aligned
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// Writes `tensors` in their order to `path` (replacing it) and syncs it. FileError on any failure (a full
/// disk).
void write_safetensors(const std::string& path, const std::vector<StoredTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace lpsgd
