// The list of classes in ImageNet's development kit, ILSVRC2012_devkit_t12/data/meta.mat: a MATLAB 5 file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lpsgd {

struct Synset {
  std::int64_t id = 0;  // ILSVRC2012_ID, from 1; the classes are those from 1 to 1000
  std::string wnid;     // "n01440764"
};

/// The entries of the struct array `synsets`, in the order of the file. Throws FileError, which begins with
/// the path, if the file cannot be read, is no little-endian MATLAB 5 file, or has no such array.
std::vector<Synset> read_meta_mat(const std::string& path);

/// The same of a file's content; `path` is for messages.
std::vector<Synset> parse_meta_mat(std::span<const std::uint8_t> bytes, const std::string& path);

}  // namespace lpsgd
