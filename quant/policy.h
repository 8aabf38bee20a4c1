// The policy: which codec each tensor gets. `min_elements: auto` leaves small tensors in float32, but keeps
// more than 99 % of all parameters quantized (EDBT 2018, section 3). `rules` name exceptions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"
#include "core/tensor_info.h"
#include "quant/codec.h"

namespace lpsgd {

/// The kind of this name (to_text); nothing if there is none.
std::optional<TensorKind> find_tensor_kind(std::string_view name);

/// `{name: "layer1.*", kind: conv, codec: {...}}`: every key given must match.
struct PolicyRule {
  std::string name;  // glob with *, ? and {a,b}; empty matches all
  std::optional<TensorKind> kind;
  CodecSpec codec;
};

struct PolicySpec {
  CodecSpec codec;                           // of every tensor that no rule names and that is large enough
  std::optional<std::int64_t> min_elements;  // nullopt: auto
  std::vector<PolicyRule> rules;             // the first match wins and overrides min_elements
};

/// Declares the keys codec, min_elements and rules of the section `exchange`.
void fields(config::Visitor& visitor, PolicySpec& spec);

/// The largest size T such that tensors of T or more elements hold more than 99 % of all parameters.
std::int64_t auto_min_elements(const std::vector<TensorInfo>& tensors);

/// The threshold that applies to these tensors.
std::int64_t min_elements(const PolicySpec& spec, const std::vector<TensorInfo>& tensors);

/// One codec per tensor, in the tensors' order.
std::vector<CodecSpec> assign_codecs(const PolicySpec& spec, const std::vector<TensorInfo>& tensors);

/// A line for each rule that gives no tensor its codec, and why. `frozen` are tensors that are not exchanged.
std::vector<std::string> unused_rules(const PolicySpec& spec, const std::vector<TensorInfo>& tensors,
                                      const std::vector<TensorInfo>& frozen = {});

}  // namespace lpsgd
