// Shards: what is written is read back, and every kind of damage is an error that says where.
#include "data/shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/checksum.h"
#include "data/class_names.h"
#include "data/shard_format.h"
#include "tests/core/temporary_folder.h"
#include "tests/data/images.h"

namespace lpsgd {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::vector<std::uint8_t> bytes(std::int64_t i, std::size_t size) {
  std::vector<std::uint8_t> out(size);
  for (std::size_t p = 0; p < size; ++p)
    out[p] = static_cast<std::uint8_t>(i * 59 + static_cast<std::int64_t>(p) * 3);
  return out;
}

std::shared_ptr<const ImageDataset> opened(const std::string& path, const std::string& dataset, Split split,
                                           std::int64_t wanted = 0) {
  DataOptions options;
  options.dataset = dataset;
  options.shards = path;
  options.train_samples = options.test_samples = wanted;
  return open_shards(options, split);
}

class Shards : public TemporaryFolder {
 protected:
  /// `samples` images from number `first` on: files of different sizes, or pixels.
  std::string pack(const std::string& name, std::int64_t samples,
                   ShardInfo info = {"images", Split::train, 7},
                   std::optional<ImageShape> shape = std::nullopt, std::int64_t first = 0) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    ShardWriter writer(path(name), std::move(info));
    for (std::int64_t i = first; i < first + samples; ++i)
      writer.add({bytes(i, shape ? static_cast<std::size_t>(shape->bytes())
                                 : static_cast<std::size_t>(i * 37 % 200)),
                  shape},
                 static_cast<std::int32_t>(i % 7), fmt::format("cat/{}.jpg", i));
    writer.finish();
    return path(name);
  }
  std::string read(const std::string& name) const {
    std::ifstream in(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::string error(const std::string& file, Split split = Split::train,
                    const char* dataset = "images") const {
    return error_of([&] { opened(file, dataset, split); });
  }
  /// The shard with a change to its index or footer, and the checksum made right again.
  template <class F>
  std::string changed(const std::string& name, F change) const {
    std::string text = read(name);
    auto* at = reinterpret_cast<std::uint8_t*>(text.data());
    auto footer = shard::load<shard::Footer>(at + text.size() - sizeof(shard::Footer));
    const std::uint64_t index = footer.index;
    auto entry = shard::load<shard::Entry>(at + index);
    change(entry, footer);
    std::memcpy(at + index, &entry, sizeof entry);
    std::memcpy(at + text.size() - sizeof footer, &footer, sizeof footer);
    const std::size_t end = text.size() - sizeof footer + offsetof(shard::Footer, checksum);
    footer.checksum = checksum64(std::as_bytes(std::span(text)).subspan(index, end - index));
    std::memcpy(at + text.size() - sizeof footer, &footer, sizeof footer);
    return write("changed.shard", text);
  }
};

TEST_F(Shards, GiveBackFiles) {
  const auto set = opened(pack("a.shard", 9), "images", Split::train);
  ASSERT_EQ(set->size(), 9);
  EXPECT_EQ(set->classes(), 7);
  EXPECT_EQ(set->fixed_shape(), std::nullopt);
  for (std::int64_t i = 0; i < 9; ++i) {
    std::vector<std::uint8_t> unused;
    const StoredImage image = set->image(i, unused);
    EXPECT_EQ(image.shape, std::nullopt);
    EXPECT_TRUE(std::ranges::equal(image.bytes, bytes(i, static_cast<std::size_t>(i * 37 % 200))));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(image.bytes.data()) % shard::alignment, 0u);
    EXPECT_EQ(set->label(i), i % 7);
    EXPECT_EQ(set->name(i), fmt::format("sample {} of {} (cat/{}.jpg)", i, path("a.shard"), i));
    EXPECT_EQ(set->stored_checksum(i), checksum64(std::as_bytes(image.bytes)));
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(Shards, GiveBackPixels) {
  const ImageShape shape{5, 4, 3};
  const auto set = opened(pack("a.shard", 3, {"cifar10", Split::test, 7}, shape), "cifar10", Split::test);
  EXPECT_EQ(set->fixed_shape(), shape);
  EXPECT_TRUE(std::ranges::equal(pixels_of(*set, 2), bytes(2, 60)));
  ShardWriter writer(path("b.shard"), {"images", Split::train, 1});
  writer.add({bytes(0, 60), shape}, 0, "");
  writer.add({bytes(0, 60), ImageShape{4, 5, 3}}, 0, "");
  writer.finish();
  EXPECT_EQ(opened(path("b.shard"), "images", Split::train)->fixed_shape(), std::nullopt);
  ShardWriter mixed(path("c.shard"), {"images", Split::train, 1});
  mixed.add({bytes(0, 20), ImageShape{5, 4, 1}}, 0, "");
  mixed.add({bytes(0, 60), shape}, 0, "");
  mixed.add({bytes(0, 20), ImageShape{5, 4, 1}}, 0, "");
  mixed.finish();
  EXPECT_EQ(opened(path("c.shard"), "images", Split::train)->fixed_shape(), shape);
}

TEST_F(Shards, OfTwoJobsThatWriteOneFileEachWritesAllOfIt) {
  ShardWriter first(path("a.shard"), {"images", Split::train, 1});
  first.add({bytes(0, 100), {}}, 0, "first");
  {
    ShardWriter second(path("a.shard"), {"images", Split::train, 1});
    for (std::int64_t i = 0; i < 3; ++i) second.add({bytes(i, 50), {}}, 0, "second");
    first.add({bytes(1, 100), {}}, 0, "first");
    first.finish();
    EXPECT_EQ(opened(path("a.shard"), "images", Split::train)->size(), 2);
    second.finish();
  }
  const auto set = opened(path("a.shard"), "images", Split::train);
  ASSERT_EQ(set->size(), 3);
  for (std::int64_t i = 0; i < 3; ++i) EXPECT_TRUE(std::ranges::equal(pixels_of(*set, i), bytes(i, 50)));
}

TEST_F(Shards, NameTheClasses) {
  const std::vector<std::string> names{"ape", "bee", "cat", "dog", "eel", "f o x", "g"};
  std::vector<std::string> others = names;
  others[4] = "emu";
  pack("s/a.shard", 3);  // without names
  EXPECT_TRUE(opened(path("s/a.shard"), "images", Split::train)->class_names().empty());
  pack("s/b.shard", 9, {"images", Split::train, 7, names});
  const auto set = opened(path("s"), "images", Split::train);
  EXPECT_EQ(set->class_names(), names);
  EXPECT_EQ(set->name(11), fmt::format("sample 8 of {} (cat/8.jpg)", path("s/b.shard")));
  EXPECT_EQ(class_names("images", set.get()), names);
  EXPECT_THAT(error(changed("s/b.shard", [](shard::Entry&, shard::Footer& footer) { footer.classes = 8; })),
              HasSubstr("malformed shard: names of 7 classes, but it has 8"));
  pack("s/c.shard", 3, {"images", Split::test, 7, others});
  EXPECT_EQ(error(path("s")),
            path("s/c.shard") + ": class 4 is 'emu', but in " + path("s/b.shard") + " it is 'eel'");
  EXPECT_EQ(error(path("s"), Split::test), error(path("s")));
}

TEST_F(Shards, AFolderIsOneDataSet) {
  pack("s/b.shard", 4, {"images", Split::train, 7}, std::nullopt, 3);
  pack("s/a.shard", 3);
  pack("s/t.shard", 5, {"images", Split::test, 7});
  write("s/readme.txt", "");
  const auto set = opened(path("s"), "images", Split::train);
  ASSERT_EQ(set->size(), 7);
  for (std::int64_t i = 0; i < 7; ++i)
    EXPECT_TRUE(std::ranges::equal(pixels_of(*set, i), bytes(i, static_cast<std::size_t>(i * 37 % 200))));
  EXPECT_EQ(opened(path("s"), "images", Split::test)->size(), 5);
  const auto part = opened(path("s"), "images", Split::train, 3);
  EXPECT_EQ(part->size(), 3);
  EXPECT_EQ(part->label(2), 4);  // of 0, 2, 4
  EXPECT_THAT(error_of<ConfigError>([&] { opened(path("s"), "images", Split::train, 8); }),
              HasSubstr("data.train_samples: 8 wanted, but "));
  pack("s/c.shard", 1, {"images", Split::train, 9});
  EXPECT_EQ(error(path("s")), path("s/c.shard") + ": has 9 classes, but " + path("s/a.shard") + " has 7");
  write("s/d.shard", "text");
  write("s/e.shard", "");
  EXPECT_EQ(error(path("s")), path("s/c.shard") + ": has 9 classes, but " + path("s/a.shard") + " has 7\n" +
                                  path("s/d.shard") + ": no shard: `lpsgd data pack` writes them\n" +
                                  path("s/e.shard") + ": empty");
}

// What is limited must not depend on whether a data set was packed.
TEST_F(Shards, ALimitKeepsTheSamplesThatTheFilesWouldGive) {
  const auto labels = [&](const char* dataset) {
    const std::string file = std::string(dataset) + ".shard";
    const auto set =
        opened(pack(file, 7, {dataset, Split::train, 7}, ImageShape{2, 2, 3}), dataset, Split::train, 3);
    return std::vector{set->label(0), set->label(1), set->label(2)};
  };
  for (const char* dataset : {"images", "imagenet"})
    EXPECT_EQ(labels(dataset), (std::vector{0, 2, 4})) << dataset;
  for (const char* dataset : {"cifar10", "cifar100", "mnist", "fashion_mnist"})
    EXPECT_EQ(labels(dataset), (std::vector{0, 1, 2})) << dataset;
}

TEST_F(Shards, AreFoundThroughTheKey) {
  DataOptions options;
  options.dataset = "images";
  options.shards = pack("a.shard", 3);
  EXPECT_EQ(open_images(options, Split::train)->size(), 3);
  EXPECT_EQ(error(options.shards, Split::test),
            path("a.shard") + ": holds no shard of split test (lpsgd data pack --split test writes one)");
  options.dataset = "mnist";
  EXPECT_EQ(error_of([&] { open_images(options, Split::train); }),
            path("a.shard") + ": holds data set images, but data.dataset is mnist");
  options.dataset = "noise";
  EXPECT_EQ(error_of<ConfigError>([&] { open_images(options, Split::train); }),
            "data.shards: data set noise does not hold images from files");
  std::filesystem::create_directory(path("empty"));
  EXPECT_EQ(error(path("empty")), path("empty") + ": holds no file *.shard");
}

TEST_F(Shards, ADamagedSampleIsNamedWhenItIsRead) {
  std::string text = read(
      std::filesystem::path(pack("a.shard", 3, {"images", Split::train, 7}, ImageShape{4, 4, 1})).filename());
  text[64 + 64 + 5] ^= 1;  // sample 1
  const auto set = opened(write("b.shard", text), "images", Split::train);
  std::vector<std::uint8_t> unused;
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_NO_THROW(set->image(0, unused));
    EXPECT_EQ(error_of([&] { set->image(1, unused); }),
              "sample 1 of " + path("b.shard") +
                  " (cat/1.jpg): damaged: its checksum is another than "
                  "when it was written");
  }
}

TEST_F(Shards, RefuseEveryOtherDamage) {
  const std::string good = read(std::filesystem::path(pack("a.shard", 3)).filename());
  EXPECT_EQ(error(write("b.shard", "")), path("b.shard") + ": empty");
  EXPECT_EQ(error(write("b.shard", std::string(100, 'x'))),
            path("b.shard") + ": no shard: `lpsgd data pack` writes them");
  std::string other = good;
  other[8] = 2;
  EXPECT_EQ(error(write("b.shard", other)), path("b.shard") + ": a shard of version 2, expected version 1");
  EXPECT_THAT(error(write("b.shard", good.substr(0, 100))), HasSubstr("truncated shard: 100 bytes"));
  for (std::size_t end = 192; end < good.size(); end += 31)
    EXPECT_THAT(error(write("b.shard", good.substr(0, end))),
                HasSubstr(fmt::format("truncated shard: its {} bytes have no end mark", end)));
  // Every bit of index, names and footer is under the checksum.
  const auto index = shard::load<shard::Footer>(reinterpret_cast<const std::uint8_t*>(good.data()) +
                                                good.size() - sizeof(shard::Footer))
                         .index;
  other = good;
  other[index] ^= 1;
  EXPECT_EQ(error(write("b.shard", other)),
            path("b.shard") + ": damaged shard: the index's checksum is another than when it was written");
  for (std::size_t at = index; at < good.size(); ++at) {
    std::string damaged = good;
    damaged[at] ^= 0x10;
    EXPECT_THAT(error(write("b.shard", damaged)), HasSubstr("shard")) << at;
  }
}

TEST_F(Shards, RefuseAnImpossibleIndex) {
  pack("a.shard", 3);
  using Entry = shard::Entry;
  using Footer = shard::Footer;
  EXPECT_EQ(error(changed("a.shard", [](Entry& e, Footer&) { e.label = 7; })),
            path("changed.shard") + ": sample 0 has label 7, expected 0 to 6");
  const char* text = "malformed shard: the entry of sample 0 is impossible";
  EXPECT_THAT(error(changed("a.shard", [](Entry& e, Footer&) { e.bytes = ~0ull; })), HasSubstr(text));
  EXPECT_THAT(error(changed("a.shard", [](Entry& e, Footer&) { e.offset = ~0ull - 7; })), HasSubstr(text));
  EXPECT_THAT(error(changed("a.shard", [](Entry& e, Footer&) { e.offset = 0; })), HasSubstr(text));
  EXPECT_THAT(error(changed("a.shard", [](Entry& e, Footer&) { e.name_end = 1000; })), HasSubstr(text));
  EXPECT_THAT(error(changed("a.shard",
                            [](Entry& e, Footer&) {
                              e.height = e.width = 0xffffffff;
                              e.channels = 3;
                            })),
              HasSubstr(text));
  EXPECT_THAT(error(changed("a.shard", [](Entry& e, Footer& f) { e.name_end = f.names_bytes; })),
              HasSubstr("the entry of sample 1 is impossible"));
  EXPECT_THAT(error(changed("a.shard", [](Entry&, Footer& f) { f.samples = 1ull << 60; })),
              HasSubstr("damaged shard: index and size do not fit together"));
  EXPECT_THAT(error(changed("a.shard", [](Entry&, Footer& f) { f.samples = 0; })),
              HasSubstr("damaged shard: index and size do not fit together"));
  EXPECT_THAT(error(changed("a.shard", [](Entry&, Footer& f) { f.index += 64; })),
              HasSubstr("damaged shard: index and size do not fit together"));
  EXPECT_THAT(error(changed("a.shard", [](Entry&, Footer& f) { f.names_bytes = ~0ull; })),
              HasSubstr("damaged shard: index and size do not fit together"));
}

TEST_F(Shards, AnUnfinishedOneLeavesNothing) {
  {
    ShardWriter writer(path("a.shard"), {"images", Split::train, 1});
    writer.add({bytes(0, 10), std::nullopt}, 0, "x");
    EXPECT_FALSE(std::filesystem::is_empty(folder_));
    EXPECT_FALSE(std::filesystem::exists(path("a.shard")));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  EXPECT_THAT(error_of([&] {
                ShardWriter(path("missing/a.shard"), {"images", Split::train, 1});
              }),
              AllOf(HasSubstr("missing/a.shard.new-"), HasSubstr(": cannot be written: No such file")));
}

}  // namespace
}  // namespace lpsgd
