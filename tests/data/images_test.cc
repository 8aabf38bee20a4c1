// Images in a folder per class: which files are taken, in which order, and the texts of errors.
#include "tests/data/images.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/batch_source.h"
#include "tests/core/temporary_folder.h"

namespace lpsgd {
namespace {

using testing::HasSubstr;

class Images : public TemporaryFolder {
 protected:
  Images() {
    options_.dataset = "images";
    options_.root = folder_.string();
    for (const char* split : {"train", "test"})
      for (const char* name : {"cat/1.jpg", "cat/2.png", "dog/1.jpg"}) put(std::string(split) + "/" + name);
  }
  /// The content is the path: no image, but the data set does not decode.
  void put(const std::string& name) const { write(name, name); }
  std::shared_ptr<const ImageDataset> open(Split split = Split::train) const {
    return open_images(options_, split);
  }
  std::string error(Split split = Split::train) const {
    return error_of([&] { open(split); });
  }
  std::vector<std::string> names(const ImageDataset& set) const {
    std::vector<std::string> out;
    for (std::int64_t i = 0; i < set.size(); ++i)
      out.push_back(set.name(i).substr(folder_.string().size() + 1));
    return out;
  }
  DataOptions options_;
};

TEST_F(Images, TakesEveryImageSortedByClassAndPath) {
  for (const char* name :
       {"train/cat/B.JPEG", "train/cat/deep/er/3.webp", "train/cat/.hidden.jpg", "train/cat/notes.txt",
        "train/cat/.git/x.jpg", "train/.cache/x.jpg", "train/dog/0.TIF", "train/readme.jpg"})
    put(name);
  std::filesystem::create_directory_symlink(path("train/dog"), path("train/cat/loop"));
  const auto set = open();
  EXPECT_THAT(names(*set),
              testing::ElementsAre("train/cat/1.jpg", "train/cat/2.png", "train/cat/B.JPEG",
                                   "train/cat/deep/er/3.webp", "train/dog/0.TIF", "train/dog/1.jpg"));
  EXPECT_EQ(set->classes(), 2);
  EXPECT_EQ(set->fixed_shape(), std::nullopt);
  std::vector<std::uint8_t> file;
  for (std::int64_t i = 0; i < set->size(); ++i) {
    EXPECT_EQ(set->label(i), i < 4 ? 0 : 1);
    const StoredImage image = set->image(i, file);
    EXPECT_EQ(folder_.string() + "/" + std::string(image.bytes.begin(), image.bytes.end()), set->name(i));
    EXPECT_EQ(image.shape, std::nullopt);
  }
}

TEST_F(Images, FoldersMayBeLinksAndHaveOtherNames) {
  put("elsewhere/9.jpg");
  std::filesystem::create_directory_symlink(path("elsewhere"), path("train/elk"));
  std::filesystem::create_directory_symlink(path("elsewhere"), path("test/elk"));
  EXPECT_EQ(open()->size(), 4);
  EXPECT_EQ(open()->classes(), 3);
  std::filesystem::rename(path("train"), path("images"));
  std::filesystem::rename(path("test"), path("val"));  // found without a key
  options_.train_folder = "images";
  EXPECT_EQ(open()->size(), 4);
  EXPECT_EQ(names(*open(Split::test))[0], "val/cat/1.jpg");
  options_.test_folder = "images";
  EXPECT_EQ(names(*open(Split::test))[0], "images/cat/1.jpg");
}

TEST_F(Images, APartOfTheSamplesIsSpreadOverTheClasses) {
  for (int i = 0; i < 8; ++i) put(fmt::format("train/dog/x{}.jpg", i));
  options_.train_samples = 5;  // of 2 + 9
  EXPECT_THAT(names(*open()), testing::ElementsAre("train/cat/1.jpg", "train/dog/1.jpg", "train/dog/x1.jpg",
                                                   "train/dog/x3.jpg", "train/dog/x5.jpg"));
  options_.train_samples = 12;
  EXPECT_EQ(error_of<ConfigError>([&] { open(); }),
            "data.train_samples: 12 wanted, but " + path("train") + " holds 11");
}

TEST_F(Images, RefusesAClassWithoutImages) {
  std::filesystem::remove(path("train/dog/1.jpg"));
  EXPECT_EQ(error(),
            path("train/dog") + ": holds no image (a file .jpg, .png, ...: docs/data.md lists them)");
  write("train/dog/1.txt", "");
  EXPECT_THAT(error(), HasSubstr("train/dog: holds no image"));
  std::filesystem::create_directory(path("train/ant"));
  std::filesystem::create_directory(path("test/ant"));
  EXPECT_THAT(error(),
              testing::ContainsRegex("train/ant: holds no image[^\n]*\n[^\n]*train/dog: holds no image"));
}

TEST_F(Images, RefusesClassesThatDiffer) {
  put("test/eel/1.jpg");
  EXPECT_EQ(error(), path("train") + ": has no class 'eel', which " + path("test") + " has");
  std::filesystem::remove_all(path("test/eel"));
  std::filesystem::remove_all(path("test/cat"));
  EXPECT_EQ(error(Split::test), path("test") + ": has no class 'cat', which " + path("train") + " has");
}

TEST_F(Images, NamesEveryBadFolder) {
  for (const char* name : {"train/ant/1.jpg", "train/bee/1.jpg", "test/fox/1.jpg"}) put(name);
  std::filesystem::remove(path("train/dog/1.jpg"));
  std::filesystem::remove(path("test/dog/1.jpg"));
  const std::string classes = fmt::format(
      "{1}: has no class 'ant', which {0} has\n{1}: has no class 'bee', which {0} has\n"
      "{0}: has no class 'fox', which {1} has\n",
      path("train"), path("test"));
  EXPECT_THAT(error(), testing::StartsWith(classes + path("train/dog") + ": holds no image"));
  EXPECT_THAT(error(Split::test), testing::StartsWith(classes + path("test/dog") + ": holds no image"));
  options_.root = path("missing");
  EXPECT_THAT(error(), testing::ContainsRegex("missing/train: no such folder[^\n]*\n[^\n]*missing/test: no "
                                              "such folder"));
}

TEST_F(Images, RefusesMissingFolders) {
  std::filesystem::remove_all(path("test"));
  EXPECT_THAT(error(), HasSubstr(path("test") +
                                 ": no such folder (data.root must hold the folders train and val or test"));
  write("test", "a file");
  EXPECT_THAT(error(), HasSubstr(path("test") + ": is no folder"));
  std::filesystem::remove(path("test"));
  std::filesystem::create_directory(path("test"));
  EXPECT_EQ(error(), path("test") + ": holds no folder; expected one folder of images per class");
  options_.root.clear();
  EXPECT_THAT(error_of<ConfigError>([&] { open(); }), HasSubstr("data.root: missing"));
}

TEST_F(Images, TellsWhyTheRootCannotBeRead) {
  expect_without_permission([&] { return error(); }, path("train") + ": cannot be read: Permission denied\n" +
                                                         path("val") + ": cannot be read: Permission denied");
  options_.root = write("file", "");
  EXPECT_EQ(error(), path("file/train") + ": cannot be read: Not a directory\n" + path("file/val") +
                         ": cannot be read: Not a directory");
}

TEST_F(Images, BatchesNeedTheShapeOfAnImage) {
  const auto set = open();
  const auto refused = [&](std::vector<std::int64_t> input) {
    return error_of<ConfigError>(
        [&] { make_batch_source(set, options_, {.global_batch = 1, .input = std::move(input)}); });
  };
  EXPECT_EQ(refused({}), "data.dataset: images has images of several sizes");
  EXPECT_EQ(refused({28, 28}), "network.input: images need (height, width, channels)");
}

TEST_F(Images, NamesAFileThatCannotBeRead) {
  std::filesystem::create_symlink("nowhere.jpg", path("train/cat/3.jpg"));
  write("train/cat/4.jpg", "");
  const auto set = open();
  std::vector<std::uint8_t> file;
  EXPECT_EQ(error_of([&] { set->image(2, file); }),
            path("train/cat/3.jpg") + ": cannot be read: No such file or directory");
  EXPECT_TRUE(set->image(3, file).bytes.empty());  // which the decoder refuses
}

}  // namespace
}  // namespace lpsgd
