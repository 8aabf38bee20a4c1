// Safetensors files (https://huggingface.co/docs/safetensors). A file is the length of the header (8 bytes,
// little endian), the header in JSON, and the bytes of the tensors. Reading maps the file into memory.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace lpsgd {

/// A tensor of a safetensors file, as float32.
struct StoredTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::span<const float> values;
};

/// A file that is open for reading. Its tensors are views, valid as long as this object lives. Those of the
/// dtypes F16 and BF16 are widened to F32, exactly; no other is accepted. PyTorch's counters of batches (I64
/// "...num_batches_tracked") are passed over.
class SafetensorsFile {
 public:
  /// Throws FileError "path: what is wrong" if the file is not well formed: a header past the end,
  /// overlapping offsets, sizes that do not match shapes, duplicate names, invalid UTF-8 or JSON.
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // in the order of their bytes
  const StoredTensor* find(const std::string& name) const;               // null if there is none
  /// Throws FileError, which names the file, the tensor and both shapes, if it is absent or has another
  /// shape.
  const StoredTensor& at(const std::string& name, const std::vector<std::int64_t>& shape) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  void* map_ = nullptr;
  std::size_t bytes_ = 0;
  std::deque<std::vector<float>> copies_;  // values that are not float32 in the file, or not aligned
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string, std::size_t> index_;  // of the tensors, by name
  std::map<std::string, std::string> metadata_;
};

/// Writes `tensors` in their order to `path`, replacing it, and syncs it. Returns the checksum of the bytes
/// that it passed on, not of what the disk made of them. Throws FileError, also if the disk is full.
std::string write_safetensors(const std::string& path, const std::vector<StoredTensor>& tensors,
                              const std::map<std::string, std::string>& metadata = {});

}  // namespace lpsgd
