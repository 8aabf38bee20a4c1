// Whether a path is there, without taking an error of the system for "no".
#pragma once

#include <filesystem>

namespace lpsgd {

/// FileError, with the system's error, if it cannot be found out: a folder on the way may not be entered, or
/// is a file.
bool path_exists(const std::filesystem::path& path);

/// Whether it is a folder, or a link to one. FileError as above.
bool is_folder(const std::filesystem::path& path);

}  // namespace lpsgd
