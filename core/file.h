// Whole files. Errors name the path.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace lpsgd {

/// The file's bytes. FileError when it cannot be read.
std::string read_file(const std::string& path);

/// Writes and syncs `pieces`, one after the other, to `path`, replacing it. FileError on any failure.
void write_file(const std::string& path, std::span<const std::span<const std::byte>> pieces);
void write_file(const std::string& path, const std::string& text);

/// As write_file, but by way of `path`.new, which is renamed: a crash or a full disk leaves the old file.
void replace_file(const std::string& path, const std::string& text);

/// Syncs a folder's entries to disk. FileError on failure.
void sync_folder(const std::string& path);

}  // namespace lpsgd
