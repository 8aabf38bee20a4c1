#include "trainer/resume_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "trainer/mpirun.h"

namespace lpsgd {

namespace {

std::string quoted(const std::string& word) {
  constexpr std::string_view plain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

}  // namespace

std::string resume_command(std::vector<std::string> words, const std::string& folder,
                           const LaunchedAs& launched) {
  const auto has = [&](std::string_view option) {
    return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
      return word == option || (word.starts_with(option) && word[option.size()] == '=');
    });
  };
  if (!has("--out")) words.insert(words.end(), {"--out", folder});
  if (!has("--resume") && !has("--resume-required")) words.emplace_back("--resume");
  std::string out;
  if (launched.launcher != nullptr)
    out = fmt::format("{} -n {}", launched.launcher == std::string_view("srun") ? "srun" : mpirun(),
                      launched.size);
  for (const std::string& word : words) {
    if (!out.empty()) out += ' ';
    out += quoted(word);
  }
  return out;
}

}  // namespace lpsgd
