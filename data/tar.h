// Tar archives, read in place: an index of their regular files, whose bytes lie in the archive as they are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/input_file.h"

namespace lpsgd {

/// A regular file in an archive: `size` bytes from `offset` of the file that holds the archive.
struct TarMember {
  std::string name;
  std::uint64_t offset = 0, size = 0;
};

/// The regular files of the archive that lies in bytes [begin, begin + size) of `file`, in the order written.
/// Takes the formats of POSIX (ustar, pax) and GNU tar, with long names, and that of Unix V7. Reads only
/// headers. Throws FileError, which begins with `name`, if the archive is truncated or malformed.
std::vector<TarMember> read_tar_index(const InputFile& file, std::uint64_t begin, std::uint64_t size,
                                      const std::string& name);

/// The whole file as one archive.
std::vector<TarMember> read_tar_index(const InputFile& file);

}  // namespace lpsgd
