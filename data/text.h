// Text as a sequence of token numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/dataset.h"

namespace lpsgd {

/// Cuts `text` into tokens and calls `token(token, line)` for each in order, with lines counted from 1. Words
/// are separated by spaces and tabs. Characters are code points in UTF-8. Behind each line comes the token
/// `options.eos`, unless that is empty. FileError, which names file, line and byte, if characters are no
/// valid UTF-8.
void for_each_token(std::string_view text, const std::string& name, const TextOptions& options,
                    const std::function<void(std::string_view token, std::size_t line)>& token);

class Vocabulary {
 public:
  /// The tokens of a text, the most frequent first; of equally frequent ones, the first to occur. `limit`
  /// keeps so many; 0: all. If tokens are left out, `options.unknown` stands for them and is kept in any
  /// case.
  static Vocabulary of_text(std::string_view text, const std::string& name, const TextOptions& options);
  /// One token a line, in the order of their numbers. FileError if there is none, or one twice, or if words
  /// hold spaces or tabs; `options.eos` and `options.unknown` may.
  static Vocabulary of_list(std::string_view text, const std::string& name, const TextOptions& options);

  std::int64_t size() const { return static_cast<std::int64_t>(numbers_.size()); }
  /// The token's number, or -1.
  std::int32_t find(std::string_view token) const;

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  bool add(std::string_view token);
  std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>> numbers_;
};

/// The numbers of a text's tokens. FileError, which names file and line, for a token that is not in the
/// vocabulary when `options.unknown` is not in it either.
std::vector<std::int32_t> encode(std::string_view text, const std::string& name, const TextOptions& options,
                                 const Vocabulary& vocabulary);

/// Text from the files of `options.text` in `options.root`. The training split is the training text. The test
/// split is the validation text, or with `evaluate: test` the test text. A vocabulary that no file gives is
/// that of the training text. `ptb` and `wikitext2` are texts with the files' names filled in: the Penn
/// Treebank as Mikolov prepared it (ptb.train.txt, ptb.valid.txt, ptb.test.txt), and WikiText-2 by words
/// (wiki.train.tokens, wiki.valid.tokens, wiki.test.tokens).
std::shared_ptr<const Dataset> open_text(const DataOptions& options, Split split);
std::shared_ptr<const Dataset> open_ptb(const DataOptions& options, Split split);
std::shared_ptr<const Dataset> open_wikitext2(const DataOptions& options, Split split);

}  // namespace lpsgd
