#include "data/text.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>

#include "core/error.h"
#include "data/file_errors.h"
#include "data/input_file.h"
#include "data/sample_limit.h"
#include "data/text_lines.h"

namespace lpsgd {

namespace {

/// The number of bytes of the code point that `text` begins with; 0 if it is no valid UTF-8 (RFC 3629): a
/// byte that cannot stand there, an overlong form, a surrogate, or one above U+10FFFF.
std::size_t code_point_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return 0;
  for (std::size_t i = 1; i < bytes; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  if ((lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xed && byte(1) > 0x9f)) return 0;
  if ((lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) > 0x8f)) return 0;
  return bytes;
}

/// The text behind its byte order mark, if it has one. FileError if that is UTF-16's.
std::string_view without_mark(std::string_view text, const std::string& name) {
  constexpr std::string_view utf8 = "\xef\xbb\xbf";
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff"))
    throw FileError(fmt::format("{}: begins as UTF-16; expected UTF-8", name));
  return text.starts_with(utf8) ? text.substr(utf8.size()) : text;
}

/// For messages: a file without spaces is one long word.
std::string shortened(std::string_view token) {
  constexpr std::size_t most = 60;
  return token.size() <= most ? std::string(token) : std::string(token.substr(0, most)) + "...";
}

/// A text as it lies in its file. Its tokens are held in memory: four bytes each.
class TextFile {
 public:
  explicit TextFile(const std::string& path) {
    constexpr std::uint64_t max_bytes = std::uint64_t{16} << 30;
    const std::uint64_t bytes = InputFile(path).size();
    if (bytes > max_bytes)
      throw FileError(fmt::format("{}: too large: {} bytes, expected {} or fewer", path, bytes, max_bytes));
    if (bytes > 0) file_.emplace(path);
  }
  std::string_view text() const {
    if (!file_) return {};
    return {reinterpret_cast<const char*>(file_->bytes().data()), file_->bytes().size()};
  }

 private:
  std::optional<MappedFile> file_;
};

class TextTokens final : public TextDataset {
 public:
  TextTokens(std::string path, std::vector<std::int32_t> tokens, std::int64_t classes)
      : path_(std::move(path)), tokens_(std::move(tokens)), classes_(classes) {}
  std::int64_t size() const override { return static_cast<std::int64_t>(tokens_.size()) - 1; }
  std::int64_t classes() const override { return classes_; }
  std::string name(std::int64_t i) const override { return fmt::format("token {} of {}", i, path_); }
  std::span<const std::int32_t> tokens() const override { return tokens_; }

 private:
  std::string path_;
  std::vector<std::int32_t> tokens_;
  std::int64_t classes_;
};

/// The path of one of the configuration's files.
std::string path_of(const DataOptions& options, const char* key, const std::string& file) {
  if (file.empty())
    throw ConfigError(fmt::format("data.text.{}: missing: the name of a file in data.root", key));
  return (std::filesystem::path(options.root) / file).string();
}

Vocabulary vocabulary_of(const DataOptions& options) {
  if (!options.text.vocabulary.empty()) {
    const std::string path = path_of(options, "vocabulary", options.text.vocabulary);
    return Vocabulary::of_list(TextFile(path).text(), path, options.text);
  }
  const std::string path = path_of(options, "train", options.text.train);
  return Vocabulary::of_text(TextFile(path).text(), path, options.text);
}

std::shared_ptr<const Dataset> open_named(DataOptions options, Split split, const char* train,
                                          const char* valid, const char* test) {
  TextOptions& text = options.text;
  if (text.train.empty()) text.train = train;
  if (text.valid.empty()) text.valid = valid;
  if (text.test.empty()) text.test = test;
  return open_text(options, split);
}

}  // namespace

void for_each_token(std::string_view text, const std::string& name, const TextOptions& options,
                    const std::function<void(std::string_view, std::size_t)>& token) {
  TextLines lines(without_mark(text, name));
  while (const auto line = lines.next()) {
    std::string_view rest = *line;
    if (options.unit == TextUnit::words) {
      for (std::string_view word = next_word(rest); !word.empty(); word = next_word(rest))
        token(word, lines.number());
    }
    while (options.unit == TextUnit::characters && !rest.empty()) {
      const std::size_t bytes = code_point_bytes(rest);
      if (bytes == 0)
        throw FileError(fmt::format("{}:{}: byte {} of the line (0x{:02x}) is not valid UTF-8", name,
                                    lines.number(), line->size() - rest.size() + 1,
                                    static_cast<unsigned>(static_cast<std::uint8_t>(rest.front()))));
      token(rest.substr(0, bytes), lines.number());
      rest.remove_prefix(bytes);
    }
    if (!options.eos.empty()) token(options.eos, lines.number());
  }
}

bool Vocabulary::add(std::string_view token) {
  return numbers_.try_emplace(std::string(token), static_cast<std::int32_t>(numbers_.size())).second;
}

std::int32_t Vocabulary::find(std::string_view token) const {
  const auto at = numbers_.find(token);
  return at == numbers_.end() ? -1 : at->second;
}

Vocabulary Vocabulary::of_text(std::string_view text, const std::string& name, const TextOptions& options) {
  struct Counted {
    std::string_view token;
    std::int64_t count = 0;
  };
  std::vector<Counted> counted;  // in the order of first occurrence
  std::unordered_map<std::string_view, std::size_t> at;
  for_each_token(text, name, options, [&](std::string_view token, std::size_t) {
    const auto [found, is_new] = at.try_emplace(token, counted.size());
    if (is_new) counted.push_back({token});
    ++counted[found->second].count;
  });
  std::stable_sort(counted.begin(), counted.end(),
                   [](const Counted& a, const Counted& b) { return a.count > b.count; });
  Vocabulary out;
  const auto limit = static_cast<std::size_t>(options.vocabulary_size);
  const bool cut = limit > 0 && counted.size() > limit;
  if (cut) {
    if (options.unknown.empty())
      throw ConfigError(fmt::format(
          "data.text.vocabulary_size: {} of {} tokens would be left out, which needs data.text.unknown",
          counted.size() - limit, counted.size()));
    const auto kept = [&](const Counted& c) { return c.token == options.unknown; };
    // The last place is the unknown token's, unless it is frequent enough by itself.
    if (std::none_of(counted.begin(), counted.begin() + options.vocabulary_size, kept))
      counted[limit - 1] = {options.unknown};
    counted.resize(limit);
  }
  for (const Counted& c : counted) out.add(c.token);
  return out;
}

Vocabulary Vocabulary::of_list(std::string_view text, const std::string& name, const TextOptions& options) {
  Vocabulary out;
  TextLines lines(without_mark(text, name));
  while (const auto line = lines.next()) {
    if (line->empty())
      throw FileError(fmt::format("{}:{}: an empty line in a vocabulary", name, lines.number()));
    // No word of a text would be equal to it.
    if (options.unit == TextUnit::words && line->find_first_of(" \t") != std::string_view::npos &&
        *line != options.eos && *line != options.unknown)
      throw FileError(fmt::format("{}:{}: token '{}' holds a space or a tab; expected one word a line", name,
                                  lines.number(), shortened(*line)));
    if (!out.add(*line))
      throw FileError(fmt::format("{}:{}: token '{}' a second time", name, lines.number(), shortened(*line)));
  }
  if (out.size() == 0) throw FileError(fmt::format("{}: holds no token", name));
  return out;
}

std::vector<std::int32_t> encode(std::string_view text, const std::string& name, const TextOptions& options,
                                 const Vocabulary& vocabulary) {
  const std::int32_t unknown = options.unknown.empty() ? -1 : vocabulary.find(options.unknown);
  std::vector<std::int32_t> out;
  for_each_token(text, name, options, [&](std::string_view token, std::size_t line) {
    const std::int32_t own = vocabulary.find(token), number = own < 0 ? unknown : own;
    if (number < 0)
      throw FileError(
          fmt::format("{}:{}: '{}' is not in the vocabulary, and no token stands for unknown ones", name,
                      line, shortened(token)));
    out.push_back(number);
  });
  return out;
}

std::shared_ptr<const Dataset> open_text(const DataOptions& options, Split split) {
  if (options.root.empty()) throw ConfigError("data.root: missing: the folder of the text files");
  const TextOptions& text = options.text;
  const std::string train = path_of(options, "train", text.train);
  const std::string test = text.evaluate == TextSplit::valid ? path_of(options, "valid", text.valid)
                                                             : path_of(options, "test", text.test);
  const std::string& path = split == Split::train ? train : test;
  Vocabulary vocabulary;
  std::vector<std::int32_t> tokens;
  FileErrors errors;
  errors.attempt([&] { vocabulary = vocabulary_of(options); });
  // Without a vocabulary the text is read all the same, to find what is wrong with it.
  const bool has_vocabulary = errors.empty();
  const bool was_read = split == Split::train && text.vocabulary.empty();  // for the vocabulary
  if (has_vocabulary || !was_read)
    errors.attempt([&] {
      const TextFile file(path);
      const std::string_view content = file.text();
      if (has_vocabulary)
        tokens = encode(content, path, text, vocabulary);
      else
        for_each_token(content, path, text, [](std::string_view, std::size_t) {});
    });
  errors.throw_if_any();
  if (tokens.size() < 2)
    throw FileError(fmt::format("{}: {} token{}; there must be one to predict", path, tokens.size(),
                                tokens.size() == 1 ? "" : "s"));
  const std::int64_t size =
      sample_limit(options, split, static_cast<std::int64_t>(tokens.size()) - 1, options.root);
  tokens.resize(static_cast<std::size_t>(size) + 1);
  return std::make_shared<TextTokens>(path, std::move(tokens), vocabulary.size());
}

std::shared_ptr<const Dataset> open_ptb(const DataOptions& options, Split split) {
  return open_named(options, split, "ptb.train.txt", "ptb.valid.txt", "ptb.test.txt");
}

std::shared_ptr<const Dataset> open_wikitext2(const DataOptions& options, Split split) {
  return open_named(options, split, "wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens");
}

}  // namespace lpsgd
