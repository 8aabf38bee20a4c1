#include "data/text.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>

#include "core/error.h"
#include "core/file.h"
#include "tests/core/temporary_folder.h"

namespace lpsgd {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> tokens_of(std::string_view text, const TextOptions& options) {
  std::vector<std::string> out;
  for_each_token(text, "t.txt", options, [&](std::string_view token, std::size_t line) {
    out.push_back(fmt::format("{}/{}", token, line));
  });
  return out;
}

TEST(Text, WordsLieBetweenSpacesAndLinesEndWithAToken) {
  TextOptions options;
  EXPECT_THAT(tokens_of(" the  cat\tsat\r\n\non", options),
              testing::ElementsAre("the/1", "cat/1", "sat/1", "<eos>/1", "<eos>/2", "on/3", "<eos>/3"));
  options.eos.clear();
  EXPECT_THAT(tokens_of("a b\n\nc\n", options), testing::ElementsAre("a/1", "b/1", "c/3"));
  EXPECT_THAT(tokens_of("", options), testing::IsEmpty());
}

TEST(Text, CharactersAreCodePoints) {
  TextOptions options;
  options.unit = TextUnit::characters;
  options.eos = "\n";
  EXPECT_THAT(tokens_of("a é\n€𝄞\n", options),
              testing::ElementsAre("a/1", " /1", "é/1", "\n/1", "€/2", "𝄞/2", "\n/2"));
}

TEST(Text, RefusesInvalidUtf8) {
  TextOptions options;
  options.unit = TextUnit::characters;
  const auto error = [&](const std::string& bytes) {
    return error_of<Error>([&] { tokens_of("ok\nab" + bytes + "cd\n", options); });
  };
  const std::vector<std::string> invalid{
      "\x80",     "\xc0\x80", "\xc1\xbf",         "\xe0\x9f\xbf",     "\xed\xa0\x80",
      "\xe2\x82", "\xff",     "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80"};
  for (const std::string& bytes : invalid)
    EXPECT_EQ(error(bytes), fmt::format("t.txt:2: byte 3 of the line (0x{:02x}) is not valid UTF-8",
                                        static_cast<unsigned char>(bytes[0])));
  for (const char* bytes : {"\xc2\x80", "\xed\x9f\xbf", "\xee\x80\x80", "\xf4\x8f\xbf\xbf"})
    EXPECT_EQ(error(bytes), "no error of this type");
  EXPECT_EQ(error_of<Error>([&] { tokens_of("\xf0\x9d\x84", options); }),
            "t.txt:1: byte 1 of the line (0xf0) is not valid UTF-8");
}

TEST(Text, TheVocabularyIsOrderedByFrequency) {
  const TextOptions options;
  const Vocabulary v = Vocabulary::of_text("c b b\na b a\n", "t", options);
  EXPECT_EQ(v.size(), 4);
  EXPECT_EQ(v.find("b"), 0);
  EXPECT_EQ(v.find("<eos>"), 1);  // twice, as often as a, but first
  EXPECT_EQ(v.find("a"), 2);
  EXPECT_EQ(v.find("c"), 3);
  EXPECT_EQ(v.find("d"), -1);
  EXPECT_THAT(encode("a b\n", "t", options, v), testing::ElementsAre(2, 0, 1));
}

TEST(Text, RareTokensBecomeTheUnknownOne) {
  TextOptions options;
  options.vocabulary_size = 3;
  const std::string text = "c b b\na b a\n";
  const Vocabulary v = Vocabulary::of_text(text, "t", options);
  EXPECT_EQ(v.size(), 3);
  EXPECT_THAT(encode(text, "t", options, v), testing::ElementsAre(2, 0, 0, 1, 2, 0, 2, 1));
  options.unknown = "b";  // frequent by itself
  EXPECT_EQ(Vocabulary::of_text(text, "t", options).find("a"), 2);
  options.unknown.clear();
  EXPECT_EQ(error_of<Error>([&] { Vocabulary::of_text(text, "t", options); }),
            "data.text.vocabulary_size: 1 of 4 tokens would be left out, which needs data.text.unknown");
  options.vocabulary_size = 4;
  EXPECT_EQ(Vocabulary::of_text(text, "t", options).size(), 4);
}

TEST(Text, ListsAndTextsWithErrorsAreRefused) {
  const auto error = [](std::string_view list) {
    return error_of([&] { Vocabulary::of_list(list, "v", {}); });
  };
  EXPECT_EQ(error("a\nb\na\n"), "v:3: token 'a' a second time");
  EXPECT_EQ(error("a\n\nb\n"), "v:2: an empty line in a vocabulary");
  EXPECT_EQ(error(""), "v: holds no token");
  const TextOptions options;
  const Vocabulary v = Vocabulary::of_list("a\n<eos>", "v", options);
  EXPECT_EQ(error_of<Error>([&] { encode("a\na new\n", "t", options, v); }),
            "t:2: 'new' is not in the vocabulary, and no token stands for unknown ones");
  EXPECT_EQ(error_of<Error>([&] { encode("a\n" + std::string(1000, 'x'), "t", options, v); }),
            "t:2: '" + std::string(60, 'x') +
                "...' is not in the vocabulary, and no token stands for unknown ones");
}

TEST(Text, AVocabularyMayBeginWithAByteOrderMark) {
  for (const std::string_view list : {"\xef\xbb\xbf"
                                      "a\nb\n",
                                      "\xef\xbb\xbf"
                                      "a\r\nb"}) {
    const Vocabulary v = Vocabulary::of_list(list, "v", {});
    EXPECT_EQ(v.size(), 2);
    EXPECT_EQ(v.find("a"), 0);
  }
  for (const std::string_view mark : {"\xff\xfe", "\xfe\xff"})
    EXPECT_EQ(error_of([&] { Vocabulary::of_list(std::string(mark) + "a\n", "v", {}); }),
              "v: begins as UTF-16; expected UTF-8");
  EXPECT_EQ(error_of([] { Vocabulary::of_list("\xef\xbb\xbf", "v", {}); }), "v: holds no token");
}

TEST(Text, WordsOfAVocabularyHoldNoSpaces) {
  TextOptions options;
  const auto error = [&](std::string_view list) {
    return error_of([&] { Vocabulary::of_list(list, "v", options); });
  };
  EXPECT_EQ(error("a\nthe cat\n"), "v:2: token 'the cat' holds a space or a tab; expected one word a line");
  EXPECT_EQ(error("a \nb\n"), "v:1: token 'a ' holds a space or a tab; expected one word a line");
  EXPECT_EQ(error("a\nb\t7\n"), "v:2: token 'b\t7' holds a space or a tab; expected one word a line");
  options.eos = "end of line";  // are found as they are
  options.unknown = "not known";
  EXPECT_EQ(Vocabulary::of_list("a\nend of line\nnot known", "v", options).size(), 3);
  options.unit = TextUnit::characters;
  EXPECT_EQ(Vocabulary::of_list(" \n\t\na", "v", options).find(" "), 0);
}

class TextFiles : public TemporaryFolder {
 protected:
  void SetUp() override {
    write("ptb.train.txt", " a b\n b <unk> b\n");
    write("ptb.valid.txt", " b c\n");
    write("ptb.test.txt", " a\n");
    options_.root = folder_.string();
  }
  std::vector<std::int32_t> tokens(Split split) const {
    const auto set = open_ptb(options_, split);
    const auto span = dynamic_cast<const TextDataset&>(*set).tokens();
    return {span.begin(), span.end()};
  }
  std::string error(Split split) const {
    std::string text = error_of<Error>([&] { open_ptb(options_, split); });
    const std::size_t at = text.find(folder_.string() + "/");
    return at == std::string::npos ? text : text.erase(at, folder_.string().size() + 1);
  }

  DataOptions options_;
};

TEST_F(TextFiles, SplitsAreTheTrainingAndTheValidationOrTestText) {
  EXPECT_THAT(tokens(Split::train), testing::ElementsAre(2, 0, 1, 0, 3, 0, 1));
  EXPECT_THAT(tokens(Split::test), testing::ElementsAre(0, 3, 1));
  options_.text.evaluate = TextSplit::test;
  EXPECT_THAT(tokens(Split::test), testing::ElementsAre(2, 1));
  const auto set = open_ptb(options_, Split::train);
  EXPECT_EQ(set->size(), 6);
  EXPECT_EQ(set->classes(), 4);
  options_.train_samples = 2;
  EXPECT_EQ(tokens(Split::train).size(), 3u);
}

TEST_F(TextFiles, AVocabularyMayBeAFile) {
  options_.text.vocabulary = "words";
  write("words", "b\na\n<eos>\n<unk>\nc\n");
  EXPECT_THAT(tokens(Split::test), testing::ElementsAre(0, 4, 2));
}

TEST_F(TextFiles, ErrorsNameTheFile) {
  fs::remove(folder_ / "ptb.valid.txt");
  EXPECT_THAT(error(Split::test), testing::StartsWith("ptb.valid.txt: "));
  write("ptb.valid.txt", "");
  EXPECT_EQ(error(Split::test), "ptb.valid.txt: 0 tokens; there must be one to predict");
  options_.text.unknown.clear();
  write("ptb.valid.txt", "a\nz\n");
  EXPECT_EQ(error(Split::test),
            "ptb.valid.txt:2: 'z' is not in the vocabulary, and no token stands for unknown ones");
  EXPECT_EQ(error_of<Error>([&] { open_text(options_, Split::train); }),
            "data.text.train: missing: the name of a file in data.root");
  options_.root.clear();
  EXPECT_EQ(error(Split::train), "data.root: missing: the folder of the text files");
}

TEST(Ptb, TheRealOneHasTenThousandWords) {
  const char* data = std::getenv("LPSGD_DATA");
  if (!data || !fs::exists(fs::path(data) / "ptb/ptb.train.txt"))
    GTEST_SKIP() << "LPSGD_DATA does not hold ptb";
  DataOptions options;
  options.root = (fs::path(data) / "ptb").string();
  EXPECT_EQ(open_ptb(options, Split::train)->classes(), 10000);
  EXPECT_EQ(open_ptb(options, Split::train)->size(), 929589 - 1);
  EXPECT_EQ(open_ptb(options, Split::test)->size(), 73760 - 1);
  options.text.evaluate = TextSplit::test;
  EXPECT_EQ(open_ptb(options, Split::test)->size(), 82430 - 1);
}

}  // namespace
}  // namespace lpsgd
