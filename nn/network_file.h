// The keys of network files (docs/networks.md): what the file itself and each entry of a list of layers may
// hold besides the options of the layer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config.h"

namespace lpsgd {

constexpr std::int64_t max_classes = 1 << 24;

/// The top level of a network file.
struct NetworkFile {
  std::string name = "network";
  std::vector<std::int64_t> input;
  bool has_open_frames = false;  // the first number is `any`
  config::Value classes;         // an integer from 1 to max_classes, once the parameters are known
  config::Value parameters, blocks, layers;
};
void fields(config::Visitor& visitor, NetworkFile& file);

/// The keys that every layer has, besides its own options.
struct LayerEntry {
  config::Value label;  // the value of the entry's first key: the layer's name, or a list of its inputs
  config::Value input, condition;
};
void fields(config::Visitor& visitor, LayerEntry& entry, const char* kind);

/// The keys of an entry that expands a block.
struct BlockEntry {
  config::Value label;  // which block
  config::Value name, repeat, with, first, input, condition;
};
void fields(config::Visitor& visitor, BlockEntry& entry);

/// The definition of a block in `blocks`.
struct BlockDefinition {
  config::Value parameters, layers;
};
void fields(config::Visitor& visitor, BlockDefinition& block);

/// Markdown tables of the file's keys and of every layer's options. docs/networks.md holds them.
std::string network_reference();

}  // namespace lpsgd
