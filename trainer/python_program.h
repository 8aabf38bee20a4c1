// Where the Python programs of lpsgd are, and what runs them.
#pragma once

#include <string>
#include <string_view>

namespace lpsgd {

/// LPSGD_PYTHON, or else `usual`: Debian's Python, whose packages the reports need.
std::string python_interpreter(const char* usual = "/usr/bin/python3");

/// LPSGD_REPORT, by default the source tree's report folder.
std::string report_folder();

/// Whether a launcher has set this environment variable for the process that it started, and for no program
/// that this process starts.
bool is_for_ranks(std::string_view variable);

}  // namespace lpsgd
