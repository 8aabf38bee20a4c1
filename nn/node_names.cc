#include "nn/node_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace lpsgd {

using config::Value;

namespace {

constexpr const char* input_word = "in";
constexpr std::size_t max_name_length = 200;

/// Whether a later entry of the list has this name.
bool comes_later(const std::string& word, const Value& list) {
  return std::any_of(list.items.begin(), list.items.end(), [&](const Value& entry) {
    if (!entry.is_map() || entry.entries.empty()) return false;
    const Value* name = entry.find("name");
    return entry.entries[0].value.scalar == word || (name && name->scalar == word);
  });
}

}  // namespace

bool is_valid_name(const std::string& name) {
  if (name.empty() || name.size() > max_name_length || name.front() == '.' || name.back() == '.')
    return false;
  return name.find("..") == std::string::npos && std::all_of(name.begin(), name.end(), [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
         });
}

std::string NodeNames::named(const Value& label, const LayerList& list, const std::string& path) const {
  const std::string word = config::to_string(label, path, config::Environment::keep);
  if (!is_valid_name(word) || word == input_word)
    config::fail(label.origin, path, fmt::format("'{}' is not a name for a layer", word));
  std::string full = list.prefix + word;
  if (nodes_.contains(full)) config::fail(label.origin, path, fmt::format("there are two layers '{}'", full));
  return full;
}

std::string NodeNames::numbered(const std::string& kind, const LayerList& list) {
  std::string name = list.prefix + kind;
  int& count = counts_[name];
  do {
    if (count++ > 0) name = fmt::format("{}{}_{}", list.prefix, kind, count);
  } while (nodes_.contains(name));
  return name;
}

std::vector<std::size_t> NodeNames::resolve(const Value& input, const std::string& layer,
                                            const LayerList& list, std::size_t previous) const {
  if (input.is_null()) return {previous};
  if (!input.is_sequence()) return {find(input, layer, layer + ".input", list, "reads")};
  if (input.items.empty()) config::fail(input.origin, layer + ".input", "the list is empty");
  std::vector<std::size_t> out;
  for (const Value& item : input.items) out.push_back(find(item, layer, layer + ".input", list, "reads"));
  return out;
}

std::size_t NodeNames::find(const Value& name, const std::string& layer, const std::string& path,
                            const LayerList& list, const char* verb) const {
  const std::string word = config::to_string(name, path, config::Environment::keep);
  if (word == input_word) return list.input;
  const auto it = nodes_.find(list.prefix + word);
  if (it != nodes_.end()) return it->second;
  if (list.prefix + word == layer) config::fail(name.origin, path, fmt::format("no layer {} itself", verb));
  if (comes_later(word, list.entries))
    config::fail(name.origin, path,
                 fmt::format("'{}' comes later; a layer {} what is defined before it", word, verb));
  std::vector<std::string> known{input_word};
  for (const auto& entry : nodes_)
    if (entry.first.starts_with(list.prefix)) known.push_back(entry.first.substr(list.prefix.size()));
  config::fail(name.origin, path,
               fmt::format("there is no layer '{}' here{}", word, config::did_you_mean(word, known)));
}

}  // namespace lpsgd
