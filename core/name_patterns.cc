#include "core/name_patterns.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/config.h"
#include "core/printable.h"

namespace lpsgd {

namespace {

/// Without {a,b}.
bool matches_glob(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0;
  std::size_t star = std::string_view::npos, resume = 0;  // after the last *, and where its run may grow
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = ++p;
      resume = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star;
      t = ++resume;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

/// A tensor's name, and those of its layer and of the blocks around it.
std::vector<std::string> names_around(const std::string& tensor) {
  std::vector<std::string> out{tensor};
  for (std::size_t dot = tensor.rfind('.'); dot != std::string::npos && dot > 0;
       dot = tensor.rfind('.', dot - 1))
    out.push_back(tensor.substr(0, dot));
  return out;
}

bool matches_any_of(const std::string& pattern, const std::vector<std::string>& names) {
  return std::ranges::any_of(names, [&](const std::string& name) { return matches_pattern(pattern, name); });
}

}  // namespace

bool matches_pattern(const std::string& pattern, const std::string& text) {
  const std::size_t open = pattern.find('{');
  const std::size_t close = open == std::string::npos ? open : pattern.find('}', open);
  if (close == std::string::npos) return matches_glob(pattern, text);
  for (std::size_t begin = open + 1; begin <= close;) {
    const std::size_t end = std::min(close, pattern.find(',', begin));
    if (matches_pattern(
            pattern.substr(0, open) + pattern.substr(begin, end - begin) + pattern.substr(close + 1), text))
      return true;
    begin = end + 1;
  }
  return false;
}

std::vector<std::string> split_patterns(std::string_view list) {
  std::vector<std::string> out(1);
  bool in_braces = false;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const char c = list[i];
    if (c == '{') in_braces = in_braces || list.find('}', i) != std::string_view::npos;
    if (c == '}') in_braces = false;
    if (c == ',' && !in_braces)
      out.emplace_back();
    else
      out.back() += c;
  }
  return out;
}

bool NamePatterns::matches(const std::string& tensor) const {
  if (empty()) return false;
  const std::vector<std::string> names = names_around(tensor);
  return std::ranges::any_of(patterns_, [&](const std::string& p) { return matches_any_of(p, names); });
}

std::optional<std::string> NamePatterns::unused(std::span<const std::string> tensors,
                                                const Nouns& nouns) const {
  for (const std::string& pattern : patterns_) {
    std::vector<std::string> known;
    bool used = false;
    for (const std::string& tensor : tensors) {
      const std::vector<std::string> names = names_around(tensor);
      used = used || matches_any_of(pattern, names);
      known.insert(known.end(), names.rbegin(), names.rend());
    }
    if (used) continue;
    std::string hint = config::did_you_mean(pattern, known);
    if (hint.empty() && !tensors.empty())
      hint = fmt::format("; {} have names such as '{}'", nouns.all, printable(tensors.front()));
    return fmt::format("'{}' is the name of {}{}", printable(pattern), nouns.none, hint);
  }
  return std::nullopt;
}

}  // namespace lpsgd
