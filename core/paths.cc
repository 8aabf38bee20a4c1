#include "core/paths.h"

#include <fmt/core.h>

#include <system_error>

#include "core/error.h"

namespace lpsgd {

namespace fs = std::filesystem;

namespace {

fs::file_status status_of(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (error && error != std::errc::no_such_file_or_directory)
    throw FileError(fmt::format("{}: cannot be read: {}", path.string(), error.message()));
  return status;
}

}  // namespace

bool path_exists(const fs::path& path) {
  return fs::exists(status_of(path));
}

bool is_folder(const fs::path& path) {
  return fs::is_directory(status_of(path));
}

}  // namespace lpsgd
