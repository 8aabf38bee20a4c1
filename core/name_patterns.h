// Patterns of the names of tensors, as exchange.rules and `lpsgd train --init-skip` take them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lpsgd {

/// Whether `text` matches `pattern`: * is any run of characters, ? any one, {a,b} either of a and b.
bool matches_pattern(const std::string& pattern, const std::string& text);

/// The patterns of "a,b.*,c.{d,e}". Commas in braces do not separate. An empty pattern stays.
std::vector<std::string> split_patterns(std::string_view list);

/// Patterns of tensors, layers and blocks.
class NamePatterns {
 public:
  NamePatterns() = default;
  explicit NamePatterns(std::vector<std::string> patterns) : patterns_(std::move(patterns)) {}

  bool empty() const { return patterns_.empty(); }
  /// Whether a pattern matches the tensor's name, or its beginning up to a dot: "layer1" and "layer1.0.conv1"
  /// stand for all of that block's and that layer's tensors.
  bool matches(const std::string& tensor) const;
  /// What messages call the names.
  struct Nouns {
    const char *none = "no layer and no tensor", *all = "tensors";
  };
  /// "'fcc' is the name of no layer and no tensor, did you mean 'fc'?" of the first pattern that matches none
  /// of the tensors. Nothing if all match one.
  std::optional<std::string> unused(std::span<const std::string> tensors) const {
    return unused(tensors, {});
  }
  std::optional<std::string> unused(std::span<const std::string> names, const Nouns& nouns) const;

 private:
  std::vector<std::string> patterns_;
};

}  // namespace lpsgd
