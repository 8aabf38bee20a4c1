#include "quant/policy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/config_shape.h"
#include "core/error.h"
#include "core/name_patterns.h"

namespace lpsgd {

namespace {

constexpr TensorKind kinds[] = {TensorKind::conv, TensorKind::dense, TensorKind::norm,
                                TensorKind::bias, TensorKind::lstm,  TensorKind::embedding};

void declare_codec(config::Visitor& v, CodecSpec& codec) {
  v.shape(codec_shape);
  v.custom(
      "codec", "a kind, or {kind, ...}", "how gradients are encoded",
      [&](const config::Value& value, const std::string& path) { codec = parse_codec(value, path); },
      [&] { return write_codec(codec); });
}

std::vector<std::string> kind_words() {
  std::vector<std::string> words;
  for (const TensorKind kind : kinds) words.emplace_back(to_text(kind));
  return words;
}

void declare_rule(config::Visitor& v, PolicyRule& rule) {
  v.field("name", rule.name, "tensors of this name; a pattern with *, ? and {a,b}");
  v.shape([] { return config::Shape::word(kind_words()); });
  const std::string words = fmt::format("{}", fmt::join(kind_words(), ", "));
  v.custom(
      "kind", words.c_str(), "tensors of this kind",
      [&](const config::Value& word, const std::string& kind_path) {
        config::Value map = config::Value::map();
        map.set("kind", word);
        config::Reader inner(map, kind_path.substr(0, kind_path.rfind('.')));
        std::vector<const char*> names;
        for (const TensorKind k : kinds) names.push_back(to_text(k));
        std::size_t index = 0;
        inner.choice("kind", index, std::span<const char* const>(names), "");
        rule.kind = kinds[index];
      },
      [] { return config::Value(); });
  v.required();
  declare_codec(v, rule.codec);
}

PolicyRule parse_rule(const config::Value& value, const std::string& path) {
  PolicyRule rule;
  config::Reader reader(value, path, config::Environment::keep);  // loading a file expands variables
  declare_rule(reader, rule);
  reader.finish();
  return rule;
}

config::Value write_rule(const PolicyRule& rule) {
  config::Value out = config::Value::map();
  if (!rule.name.empty()) out.set("name", config::Value::string(rule.name));
  if (rule.kind) out.set("kind", config::Value::plain(to_text(*rule.kind)));
  out.set("codec", write_codec(rule.codec));
  return out;
}

bool applies(const PolicyRule& rule, const TensorInfo& tensor) {
  if (rule.kind && *rule.kind != tensor.kind) return false;
  return rule.name.empty() || matches_pattern(rule.name, tensor.name);
}

/// The rule that gives the tensor its codec.
auto rule_of(const PolicySpec& spec, const TensorInfo& tensor) {
  return std::ranges::find_if(spec.rules, [&](const PolicyRule& r) { return applies(r, tensor); });
}

}  // namespace

std::optional<TensorKind> find_tensor_kind(std::string_view name) {
  for (const TensorKind kind : kinds)
    if (name == to_text(kind)) return kind;
  return std::nullopt;
}

void fields(config::Visitor& v, PolicySpec& spec) {
  declare_codec(v, spec.codec);
  v.shape([] {
    return config::Shape::choice({config::Shape::word({"auto"}), config::Shape::integer({.min = 0})});
  });
  v.custom(
      "min_elements", "auto or an integer >= 0",
      "tensors with fewer values are sent as float32; auto: the largest number that still encodes over 99 % "
      "of the parameters",
      [&](const config::Value& value, const std::string& path) {
        if (value.is_scalar() && value.scalar == "auto") {
          spec.min_elements.reset();
          return;
        }
        try {
          spec.min_elements = config::to_integer(value, path, {.min = 0});
        } catch (const ConfigError&) {
          config::fail(value.origin, path,
                       fmt::format("expected auto or an integer >= 0{}",
                                   value.is_scalar() ? fmt::format(", got '{}'", value.scalar) : ""));
        }
      },
      [&] {
        return config::Value::plain(spec.min_elements ? fmt::format("{}", *spec.min_elements) : "auto");
      });
  v.shape([] {
    PolicyRule rule;
    return config::Shape::list(
        config::Shape::map([&](config::Visitor& inner) { declare_rule(inner, rule); }));
  });
  v.custom(
      "rules", "list of {name, kind, codec}",
      "exceptions for some tensors; the first rule that matches a tensor decides, whatever its size",
      [&](const config::Value& value, const std::string& path) {
        if (!value.is_sequence()) config::fail(value.origin, path, "expected a list of {name, kind, codec}");
        spec.rules.clear();
        for (std::size_t i = 0; i < value.items.size(); ++i)
          spec.rules.push_back(parse_rule(value.items[i], fmt::format("{}[{}]", path, i)));
      },
      [&] {
        config::Value list = config::Value::sequence();
        for (const PolicyRule& rule : spec.rules) list.items.push_back(write_rule(rule));
        return list;
      });
}

std::int64_t auto_min_elements(const std::vector<TensorInfo>& tensors) {
  std::vector<std::int64_t> sizes;
  std::int64_t total = 0;
  for (const TensorInfo& t : tensors) {
    sizes.push_back(t.elements);
    total += t.elements;
  }
  std::sort(sizes.rbegin(), sizes.rend());
  std::int64_t covered = 0;
  for (const std::int64_t size : sizes) {
    covered += size;
    if (static_cast<double>(covered) > 0.99 * static_cast<double>(total)) return size;
  }
  return 0;
}

std::int64_t min_elements(const PolicySpec& spec, const std::vector<TensorInfo>& tensors) {
  return spec.min_elements ? *spec.min_elements : auto_min_elements(tensors);
}

std::vector<CodecSpec> assign_codecs(const PolicySpec& spec, const std::vector<TensorInfo>& tensors) {
  const std::int64_t threshold = min_elements(spec, tensors);
  std::vector<CodecSpec> out;
  for (const TensorInfo& t : tensors) {
    const auto rule = rule_of(spec, t);
    out.push_back(rule != spec.rules.end()  ? rule->codec
                  : t.elements >= threshold ? spec.codec
                                            : CodecSpec{});
  }
  return out;
}

std::vector<std::string> unused_rules(const PolicySpec& spec, const std::vector<TensorInfo>& tensors,
                                      const std::vector<TensorInfo>& frozen) {
  std::vector<std::string> names, out;
  for (const TensorInfo& t : tensors) names.push_back(t.name);
  for (auto rule = spec.rules.begin(); rule != spec.rules.end(); ++rule) {
    std::size_t matched = 0, taken = 0;
    for (const TensorInfo& t : tensors) {
      matched += applies(*rule, t);
      taken += rule_of(spec, t) == rule;
    }
    if (taken > 0 || tensors.empty()) continue;
    std::string why = "earlier rules take all tensors that it matches";
    const auto stays = std::ranges::find_if(frozen, [&](const TensorInfo& t) { return applies(*rule, t); });
    if (matched == 0 && stays != frozen.end()) {
      why = fmt::format("it matches only frozen tensors, such as '{}', which are not exchanged", stays->name);
    } else if (matched == 0) {
      why = "it matches no tensor" + config::did_you_mean(rule->name, names);
      if (!config::nearest(rule->name, names))
        why += fmt::format("; tensors have names such as '{}'", names.front());
    }
    out.push_back(fmt::format("exchange.rules[{}] has no effect: {}", rule - spec.rules.begin(), why));
  }
  return out;
}

}  // namespace lpsgd
