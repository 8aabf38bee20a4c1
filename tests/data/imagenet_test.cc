// ImageNet's layouts, small: folders, the original archives as GNU tar writes them, and the lists of labels.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "data/imagenet_labels.h"
#include "tests/core/temporary_folder.h"
#include "tests/data/images.h"

namespace lpsgd {
namespace {

using testing::HasSubstr;

const std::vector<std::string> wnids{"n01440764", "n01443537", "n02119789"};
// The development kit numbers classes in another order than that of their WNIDs.
constexpr const char* synsets = "n02119789 kit fox\nn01440764 tench\nn01443537 goldfish\n";

class ImageNet : public TemporaryFolder {
 protected:
  ImageNet() {
    options_.dataset = "imagenet";
    options_.root = folder_.string();
    for (int c = 0; c < 3; ++c)
      for (int i = 0; i < 2 + c; ++i) {
        const std::string name = fmt::format("train/{0}/{0}_{1}.JPEG", wnids[static_cast<std::size_t>(c)], i);
        write(name, name);
      }
    for (int i = 1; i <= 4; ++i)
      write(fmt::format("val/ILSVRC2012_val_{:08}.JPEG", i), fmt::format("image {}", i));
    write("ILSVRC2012_validation_ground_truth.txt", "2\n3\n1\n2\n");
    write("synsets.txt", synsets);
  }
  void shell(const std::string& command) const {
    EXPECT_EQ(std::system(("cd " + folder_.string() + " && " + command).c_str()), 0) << command;
  }
  /// Both archives as they are distributed, in place of the folders.
  void make_archives() const {
    shell("cd train && for c in n*; do tar -C $c -cf $c.tar . --transform 's,^[.]/,,' ; rm -r $c; done");
    shell("tar -C train --sort=name -cf ILSVRC2012_img_train.tar $(ls train) && rm -r train");
    shell("tar -C val -cf ILSVRC2012_img_val.tar $(ls -r val) && rm -r val");
  }
  std::shared_ptr<const ImageDataset> open(Split split = Split::train) const {
    return open_images(options_, split);
  }
  std::string error(Split split = Split::train) const {
    return error_of([&] { open(split); });
  }
  static std::vector<std::string> contents(const ImageDataset& set) {
    std::vector<std::string> out;
    std::vector<std::uint8_t> file;
    for (std::int64_t i = 0; i < set.size(); ++i) {
      const auto bytes = set.image(i, file).bytes;
      out.push_back(fmt::format("{}: {}", set.label(i), std::string(bytes.begin(), bytes.end())));
    }
    return out;
  }
  const std::vector<std::string> val_{"0: image 1", "0: image 4", "1: image 2", "2: image 3"};
  DataOptions options_;
};

TEST_F(ImageNet, FoldersAndArchivesHoldTheSameSamples) {
  const std::vector<std::string> train = contents(*open());
  ASSERT_EQ(train.size(), 9u);
  EXPECT_EQ(train[2], "1: train/n01443537/n01443537_0.JPEG");
  EXPECT_EQ(open()->classes(), 3);
  EXPECT_EQ(contents(*open(Split::test)), val_);
  make_archives();
  EXPECT_EQ(contents(*open()), train);
  EXPECT_EQ(contents(*open(Split::test)), val_);
  EXPECT_EQ(open()->name(8), path("ILSVRC2012_img_train.tar/n02119789.tar/n02119789_3.JPEG"));
  EXPECT_EQ(open(Split::test)->name(0), path("ILSVRC2012_img_val.tar/ILSVRC2012_val_00000001.JPEG"));
  options_.train_samples = 3;
  EXPECT_THAT(contents(*open()), testing::ElementsAre(train[0], train[3], train[6]));
}

TEST_F(ImageNet, APartOfTheValidationImagesKeepsEveryClassesShare) {
  std::string truth;
  for (int i = 1; i <= 12; ++i) {
    write(fmt::format("val/ILSVRC2012_val_{:08}.JPEG", i), fmt::format("image {}", i));
    truth += fmt::format("{}\n", 1 + i % 4 % 3);  // of the kit's numbers 6, 3 and 3
  }
  write("ILSVRC2012_validation_ground_truth.txt", truth);
  options_.test_samples = 3;
  const std::vector<std::string> part = contents(*open(Split::test));
  EXPECT_THAT(part, testing::ElementsAre("0: image 1", "1: image 6", "2: image 7"));
  make_archives();
  EXPECT_EQ(contents(*open(Split::test)), part);
}

TEST_F(ImageNet, ArchivesAreFilteredAsFoldersAre) {
  const std::vector<std::string> train = contents(*open());
  for (const char* name : {".DS_Store", "._n01443537_0.JPEG", "readme.txt", "Thumbs.db", "JPEG"}) {
    write(std::string("train/n01443537/") + name, "other");
    write(std::string("val/") + name, "other");
  }
  EXPECT_EQ(contents(*open()), train);
  EXPECT_EQ(contents(*open(Split::test)), val_);
  shell("cd train && for c in n*; do tar -C $c -cf $c.tar . ; rm -r $c; done");
  shell("tar -C train -cf ILSVRC2012_img_train.tar $(ls train) && rm -r train");
  shell("tar -C val -cf ILSVRC2012_img_val.tar . && rm -r val");
  EXPECT_EQ(contents(*open()), train);
  EXPECT_EQ(contents(*open(Split::test)), val_);
  shell("touch readme.txt .x.jpg && tar -cf ILSVRC2012_img_val.tar readme.txt .x.jpg");
  shell("tar -cf n01440764.tar readme.txt && tar -cf ILSVRC2012_img_train.tar n01440764.tar");
  EXPECT_EQ(error(Split::test), path("ILSVRC2012_img_val.tar") + ": holds no image");
  EXPECT_EQ(error(), path("ILSVRC2012_img_train.tar/n01440764.tar") + ": holds no image");
}

TEST_F(ImageNet, TakesValidationFoldersAndKagglesList) {
  std::filesystem::remove(path("ILSVRC2012_validation_ground_truth.txt"));
  write("LOC_val_solution.csv",
        "ImageId,PredictionString\r\nILSVRC2012_val_00000003,n02119789 85 1 499 272 \r\n"
        "ILSVRC2012_val_00000001,n01440764 1 2 3 4 n01440764 5 6 7 8\r\nILSVRC2012_val_00000002,n01443537 1 "
        "2 3 4\r\n"
        "ILSVRC2012_val_00000004,n01440764 1 2 3 4\r\n");
  EXPECT_EQ(contents(*open(Split::test)), val_);
  shell(
      "cd val && mkdir n01440764 n01443537 n02119789 && mv *1.JPEG *4.JPEG n01440764 && mv *2.JPEG n01443537 "
      "&& "
      "mv *3.JPEG n02119789");
  std::filesystem::remove(path("LOC_val_solution.csv"));
  EXPECT_EQ(contents(*open(Split::test)), val_);
  std::filesystem::remove_all(path("val/n01443537"));
  EXPECT_EQ(error(Split::test), path("val") + ": has no class 'n01443537', which " + path("train") + " has");
}

TEST_F(ImageNet, LooksForTheDevelopmentKit) {
  std::filesystem::remove(path("synsets.txt"));
  EXPECT_EQ(error(Split::test), path("meta.mat") +
                                    ": missing: it, or synsets.txt, gives the class of each "
                                    "ILSVRC2012_ID in ILSVRC2012_validation_ground_truth.txt");
  std::filesystem::remove(path("ILSVRC2012_validation_ground_truth.txt"));
  EXPECT_THAT(error(Split::test),
              HasSubstr(": holds no labels of the validation images: expected ILSVRC2012_devkit_t12"));
  write("ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt", "2\n3\n1\n2\n");
  write("ILSVRC2012_devkit_t12/data/synsets.txt", synsets);
  EXPECT_EQ(contents(*open(Split::test)), val_);
  write("ILSVRC2012_devkit_t12/data/meta.mat", "no MATLAB file");
  EXPECT_THAT(error(Split::test), HasSubstr("meta.mat: no MATLAB 5 file"));
}

TEST_F(ImageNet, RefusesListsThatDoNotFit) {
  const std::string list = path("ILSVRC2012_validation_ground_truth.txt");
  write("ILSVRC2012_validation_ground_truth.txt", "2\n3\n1\n2\n1\n");
  EXPECT_EQ(error(Split::test), fmt::format("{}: labels of 5 images, but {} holds 4", list, path("val")));
  write("ILSVRC2012_validation_ground_truth.txt", "2\n3\n");
  EXPECT_EQ(error(Split::test), fmt::format("{0}: labels of 2 images, but {1} holds 4\n"
                                            "{1}/ILSVRC2012_val_00000003.JPEG: {0} has no label of it\n"
                                            "{1}/ILSVRC2012_val_00000004.JPEG: {0} has no label of it",
                                            list, path("val")));
  for (const char* wrong : {"0", "4", "-1", "x", "", "2 3"}) {
    write("ILSVRC2012_validation_ground_truth.txt", fmt::format("2\n{}\n1\n2\n", wrong));
    EXPECT_EQ(error(Split::test),
              fmt::format("{}:2: '{}', expected one of the 3 ILSVRC2012_IDs (1 to 3) in meta.mat or "
                          "synsets.txt",
                          list, wrong));
  }
  write("ILSVRC2012_validation_ground_truth.txt", "");
  EXPECT_EQ(error(Split::test), list + ": empty");
  write("ILSVRC2012_validation_ground_truth.txt", "2\n3\n1\n2\n");
  std::filesystem::rename(path("val/ILSVRC2012_val_00000004.JPEG"), path("val/ILSVRC2012_val_00000005.JPEG"));
  EXPECT_EQ(error(Split::test),
            path("val/ILSVRC2012_val_00000005.JPEG") + ": " + list + " has no label of it");
  std::filesystem::rename(path("val/ILSVRC2012_val_00000005.JPEG"), path("val/ILSVRC2012_val_00000004.JPEG"));
  std::filesystem::remove_all(path("train/n01443537"));
  EXPECT_EQ(error(Split::test), list + ": class n01443537 of " + path("val/ILSVRC2012_val_00000002.JPEG") +
                                    " is none of the training images' 2 classes");
  std::filesystem::remove_all(path("train/n02119789"));
  EXPECT_EQ(error(Split::test),
            fmt::format("{0}: class n01443537 of {1}/ILSVRC2012_val_00000002.JPEG is none of the training "
                        "images' 1 classes\n"
                        "{0}: class n02119789 of {1}/ILSVRC2012_val_00000003.JPEG is none of the training "
                        "images' 1 classes",
                        list, path("val")));
  write("synsets.txt", "n02119789\nbird\n");
  EXPECT_EQ(error(Split::test), path("synsets.txt") + ":2: 'bird', expected a WNID, such as n01440764");
}

TEST_F(ImageNet, RefusesMalformedLists) {
  EXPECT_EQ(error_of([] {
              parse_ground_truth("4\n400\n5\n", "t", {{4, wnids[0]}, {400, wnids[1]}});
            }),
            "t:3: '5', expected one of the 2 ILSVRC2012_IDs (4 to 400) in meta.mat or synsets.txt");
  const auto kaggle = [](const std::string& text) { return error_of([&] { parse_kaggle_list(text, "k"); }); };
  EXPECT_EQ(kaggle("ImageId,PredictionString\na n01440764 1 2 3 4\n"),
            "k:2: 'a n01440764 1 2 3 4', expected IMAGE,WNID and a box");
  EXPECT_EQ(kaggle("a,cat 1 2 3 4\n"), "k:1: 'a,cat 1 2 3 4', expected IMAGE,WNID and a box");
  EXPECT_EQ(kaggle("a,n01440764 1\na,n01440764 2\n"), "k:2: 'a,n01440764 2', expected each image once");
  EXPECT_EQ(kaggle("ImageId,PredictionString\n"), "k: empty");
  EXPECT_EQ(error_of([] { parse_synset_list("", "s"); }), "s: empty");
}

TEST_F(ImageNet, RefusesAListInTheOrderOfWnids) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += fmt::format("n{:08}\n", i * 7);
  EXPECT_THAT(
      error_of([&] { parse_synset_list(text, "synsets.txt"); }),
      HasSubstr(
          "synsets.txt: in the order of WNIDs, but the development kit numbers classes in another order"));
  std::swap(text[5], text[15]);
  text += "n00000001\n";
  EXPECT_EQ(parse_synset_list(text, "synsets.txt").size(), 1001u);
}

TEST_F(ImageNet, RefusesWhatIsNotImageNet) {
  for (const char* name : {"cats", "dogs"}) std::filesystem::create_directory(path("train/") + name);
  EXPECT_EQ(error(), fmt::format("{0}: has the folder 'cats', expected one of each class, such as n01440764\n"
                                 "{0}: has the folder 'dogs', expected one of each class, such as n01440764",
                                 path("train")));
  for (const char* name : {"cats", "dogs"}) std::filesystem::remove(path("train/") + name);
  make_archives();
  shell("touch x y.tar && tar -rf ILSVRC2012_img_train.tar x y.tar");
  EXPECT_EQ(error(),
            fmt::format("{0}: holds 'x', expected an archive of each class, such as n01440764.tar\n"
                        "{0}: holds 'y.tar', expected an archive of each class, such as n01440764.tar",
                        path("ILSVRC2012_img_train.tar")));
  shell("mv ILSVRC2012_img_train.tar full && tar -cf ILSVRC2012_img_train.tar -T /dev/null");
  EXPECT_EQ(error(), path("ILSVRC2012_img_train.tar") + ": holds no archive of a class");
  shell("mv full ILSVRC2012_img_train.tar");
  std::filesystem::resize_file(path("ILSVRC2012_img_train.tar"), 3000);
  EXPECT_THAT(error(),
              HasSubstr("ILSVRC2012_img_train.tar: truncated: a member of 10240 bytes begins at byte 512"));
  std::filesystem::remove(path("ILSVRC2012_img_val.tar"));
  EXPECT_EQ(error(), folder_.string() + ": holds neither the folder val nor ILSVRC2012_img_val.tar");
  options_.train_folder = "elsewhere";
  EXPECT_EQ(error(), path("elsewhere") + ": no such folder\n" + folder_.string() +
                         ": holds neither the folder val nor ILSVRC2012_img_val.tar");
  options_.root.clear();
  EXPECT_EQ(error_of<ConfigError>([&] { open(); }),
            "data.root: missing: the folder of ImageNet's images or archives");
}

TEST_F(ImageNet, TellsWhyTheRootCannotBeRead) {
  expect_without_permission([&] { return error(); }, path("train") + ": cannot be read: Permission denied\n" +
                                                         path("val") + ": cannot be read: Permission denied");
  options_.root = write("file", "");
  EXPECT_EQ(error(), path("file/train") + ": cannot be read: Not a directory\n" + path("file/val") +
                         ": cannot be read: Not a directory");
}

TEST_F(ImageNet, HiddenFoldersOfArchivesArePassedOver) {
  const std::vector<std::string> train = contents(*open());
  write("train/n01443537/.thumbs/x.JPEG", "other");
  write("val/deep/.thumbs/x.JPEG", "other");
  EXPECT_EQ(contents(*open()), train);
  shell("cd train && for c in n*; do tar -C $c -cf $c.tar . ; rm -r $c; done");  // names begin with ./
  shell("tar -C train -cf ILSVRC2012_img_train.tar $(ls train) && rm -r train");
  shell("tar -C val -cf ILSVRC2012_img_val.tar $(ls val) && rm -r val");
  EXPECT_EQ(contents(*open()), train);
  EXPECT_EQ(contents(*open(Split::test)), val_);
}

TEST_F(ImageNet, RefusesTwoArchivesOfOneClass) {
  shell("cd train && for c in n*; do tar -C $c -cf $c.tar . ; rm -r $c; done");
  shell(
      "cd train && mkdir copy && cp n01440764.tar copy && tar -cf ../ILSVRC2012_img_train.tar n*.tar "
      "copy/*.tar");
  shell("rm -r train");
  EXPECT_EQ(error(), path("ILSVRC2012_img_train.tar") +
                         ": holds two archives of one class: 'n01440764.tar' and 'copy/n01440764.tar'");
}

TEST_F(ImageNet, NamesADamagedInnerArchive) {
  shell("cd train && for c in n*; do tar -C $c -cf $c.tar . ; rm -r $c; done");
  shell(
      "truncate -s 700 train/n01443537.tar && tar -C train -cf ILSVRC2012_img_train.tar $(ls train) && rm -r "
      "train");
  EXPECT_THAT(error(), HasSubstr("ILSVRC2012_img_train.tar/n01443537.tar: truncated"));
}

}  // namespace
}  // namespace lpsgd
