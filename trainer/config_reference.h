// The reference of a configuration's keys: docs/configuration.md, `lpsgd help` and the JSON schema, all from
// the declarations that also read the file.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace lpsgd {

/// Tables of every key in Markdown, for docs/configuration.md.
std::string config_reference_markdown();

/// The JSON schema of a configuration, for editors (configs/schema.json).
std::string config_json_schema();

/// What `key` means, the values it takes and its default: "train.batch_size", or a section, such as
/// "exchange". ConfigError, with the nearest key or one of `other_words`, when there is no such key.
std::string config_help(const std::string& key, std::span<const std::string> other_words);

/// The sections with their meaning, one a line.
std::string config_sections();

/// The sections and maps that have a key of this name: "schedule" for "lr".
std::vector<std::string> homes_of_key(const std::string& name);

/// Whether `key` is a key or a section.
bool is_config_key(const std::string& key);

}  // namespace lpsgd
