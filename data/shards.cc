#include "data/shards.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <string_view>

#include "core/checksum.h"
#include "core/error.h"
#include "core/printable.h"
#include "data/file_errors.h"
#include "data/input_file.h"
#include "data/sample_limit.h"
#include "data/shard_format.h"

namespace lpsgd {

namespace {

namespace fs = std::filesystem;

/// One mapped file. Its header, footer and index have been checked.
class Shard {
 public:
  explicit Shard(const std::string& path) : file_(path) {
    read_ends();
    check_index();
    read_class_names();
    verified_ = std::make_unique<std::atomic<std::uint8_t>[]>(footer_.samples);
  }

  const std::string& path() const { return file_.path(); }
  std::int64_t size() const { return static_cast<std::int64_t>(footer_.samples); }
  std::int64_t classes() const { return footer_.classes; }
  Split split() const { return footer_.split == 0 ? Split::train : Split::test; }
  std::string dataset() const {
    return {footer_.dataset.begin(), std::find(footer_.dataset.begin(), footer_.dataset.end(), '\0')};
  }

  /// By label; empty if the shard does not name its classes.
  const std::vector<std::string>& class_names() const { return class_names_; }

  shard::Entry entry(std::int64_t i) const {
    return shard::load<shard::Entry>(file_.bytes().data() + footer_.index +
                                     static_cast<std::uint64_t>(i) * sizeof(shard::Entry));
  }
  static std::optional<ImageShape> shape_of(const shard::Entry& e) {
    if (e.height == 0) return std::nullopt;
    return ImageShape{e.height, e.width, e.channels};
  }

  std::string name(std::int64_t i) const {
    const std::uint64_t first = i == 0 ? 0 : entry(i - 1).name_end, last = entry(i).name_end;
    return fmt::format("sample {} of {} ({})", i, path(), std::string_view(names() + first, last - first));
  }

  StoredImage image(std::int64_t i) const {
    const shard::Entry e = entry(i);
    const std::span<const std::uint8_t> bytes = file_.bytes().subspan(e.offset, e.bytes);
    std::atomic<std::uint8_t>& verified = verified_[static_cast<std::size_t>(i)];
    if (verified.load(std::memory_order_relaxed) == 0) {
      if (checksum64(std::as_bytes(bytes)) != e.checksum)
        throw FileError(
            fmt::format("{}: damaged: its checksum is another than when it was written", name(i)));
      verified.store(1, std::memory_order_relaxed);
    }
    return {bytes, shape_of(e)};
  }

 private:
  const char* names() const {
    return reinterpret_cast<const char*>(file_.bytes().data() + footer_.index +
                                         footer_.samples * sizeof(shard::Entry));
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw FileError(fmt::format("{}: {}", path(), what));
  }

  void read_ends() {
    const std::span<const std::uint8_t> bytes = file_.bytes();
    if (bytes.size() < sizeof(shard::Header) || shard::load<shard::Magic>(bytes.data()) != shard::begin_magic)
      fail("no shard: `lpsgd data pack` writes them");
    const auto header = shard::load<shard::Header>(bytes.data());
    if (header.version != shard::version)
      fail(fmt::format("a shard of version {}, expected version {}", header.version, shard::version));
    const std::uint64_t size = bytes.size();
    if (size < sizeof header + sizeof footer_) fail(fmt::format("truncated shard: {} bytes", size));
    footer_ = shard::load<shard::Footer>(bytes.data() + size - sizeof footer_);
    if (footer_.magic != shard::end_magic)
      fail(fmt::format("truncated shard: its {} bytes have no end mark", size));
    const std::uint64_t room = size - sizeof header - sizeof footer_;
    const bool fits =
        footer_.samples >= 1 && footer_.samples <= room / sizeof(shard::Entry) &&
        footer_.names_bytes <= room - footer_.samples * sizeof(shard::Entry) &&
        footer_.index == size - sizeof footer_ - footer_.names_bytes - footer_.samples * sizeof(shard::Entry);
    if (!fits) fail("damaged shard: index and size do not fit together");
    const std::uint64_t end = size - sizeof footer_ + offsetof(shard::Footer, checksum);
    if (checksum64(std::as_bytes(bytes.subspan(footer_.index, end - footer_.index))) != footer_.checksum)
      fail("damaged shard: the index's checksum is another than when it was written");
  }

  /// What a right checksum does not exclude: a file that was not written by ShardWriter.
  void check_index() const {
    std::uint64_t names = 0;
    for (std::int64_t i = 0; i < size(); ++i) {
      const shard::Entry e = entry(i);
      const bool is_file = e.height == 0 && e.width == 0 && e.channels == 0;
      const bool is_image = e.height > 0 && e.width > 0 && e.channels > 0 && e.channels <= 4 &&
                            e.height <= 1u << 20 && e.width <= 1u << 20 &&
                            e.bytes == std::uint64_t{e.height} * e.width * e.channels;
      if (e.offset < sizeof(shard::Header) || e.offset > footer_.index ||
          e.bytes > footer_.index - e.offset || e.name_end < names || e.name_end > footer_.names_bytes ||
          !(is_file || is_image))
        fail(fmt::format("malformed shard: the entry of sample {} is impossible", i));
      if (e.label < 0 || e.label >= classes())
        fail(fmt::format("sample {} has label {}, expected 0 to {}", i, e.label, classes() - 1));
      names = e.name_end;
    }
  }

  /// They lie behind the samples' names.
  void read_class_names() {
    const std::uint64_t first = entry(size() - 1).name_end;
    std::string_view rest(names() + first, footer_.names_bytes - first);
    for (; !rest.empty(); rest.remove_prefix(class_names_.back().size() + 1)) {
      const std::size_t end = rest.find('\0');
      if (end == std::string_view::npos) fail("malformed shard: the last class's name has no end");
      class_names_.emplace_back(rest.substr(0, end));
    }
    if (!class_names_.empty() && class_names_.size() != footer_.classes)
      fail(
          fmt::format("malformed shard: names of {} classes, but it has {}", class_names_.size(), classes()));
  }

  MappedFile file_;
  shard::Footer footer_;
  std::vector<std::string> class_names_;
  std::unique_ptr<std::atomic<std::uint8_t>[]> verified_;  // 1: the sample's checksum was right
};

class Shards final : public ImageDataset {
 public:
  /// `size`: how many of their samples to use: evenly spaced ones, or the first.
  Shards(std::vector<std::unique_ptr<Shard>> shards, std::int64_t size, bool spaced)
      : shards_(std::move(shards)), size_(size), spaced_(spaced) {
    for (const auto& shard : shards_) ends_.push_back((ends_.empty() ? 0 : ends_.back()) + shard->size());
    for (const auto& shard : shards_)
      if (class_names_.empty()) class_names_ = shard->class_names();
    shape_ = Shard::shape_of(shards_[0]->entry(0));
    for (std::int64_t i = 0; i < size_ && shape_; ++i) {
      const auto [shard, at] = find(i);
      shape_ = common(*shape_, Shard::shape_of(shard->entry(at)));
    }
  }
  std::int64_t size() const override { return size_; }
  std::int64_t classes() const override { return shards_[0]->classes(); }
  std::vector<std::string> class_names() const override { return class_names_; }
  std::string name(std::int64_t i) const override {
    const auto [shard, at] = find(i);
    return shard->name(at);
  }
  std::int32_t label(std::int64_t i) const override {
    const auto [shard, at] = find(i);
    return shard->entry(at).label;
  }
  std::optional<ImageShape> fixed_shape() const override { return shape_; }
  StoredImage image(std::int64_t i, std::vector<std::uint8_t>&) const override {
    const auto [shard, at] = find(i);
    return shard->image(at);
  }
  std::optional<std::uint64_t> stored_checksum(std::int64_t i) const override {
    const auto [shard, at] = find(i);
    return shard->entry(at).checksum;
  }

 private:
  /// A grayscale image among colour ones has one channel.
  static std::optional<ImageShape> common(const ImageShape& a, const std::optional<ImageShape>& b) {
    if (!b || a.height != b->height || a.width != b->width) return std::nullopt;
    if (a.channels != b->channels && a.channels * b->channels != 3) return std::nullopt;
    return ImageShape{a.height, a.width, std::max(a.channels, b->channels)};
  }

  std::pair<const Shard*, std::int64_t> find(std::int64_t i) const {
    if (spaced_) i = evenly_spaced(i, size_, ends_.back());
    const auto shard =
        static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), i) - ends_.begin());
    return {shards_[shard].get(), i - (shard == 0 ? 0 : ends_[shard - 1])};
  }

  std::vector<std::unique_ptr<Shard>> shards_;
  std::vector<std::int64_t> ends_;  // cumulative sizes
  std::int64_t size_;
  bool spaced_;
  std::optional<ImageShape> shape_;
  std::vector<std::string> class_names_;
};

struct NamedClasses {
  std::string path;  // of the shard
  std::vector<std::string> names;
};

/// A label is the same class in all shards of a folder, as far as they name them. `first`: the first that
/// does.
void check_names(const Shard& shard, NamedClasses& first) {
  NamedClasses own{shard.path(), shard.class_names()};
  if (own.names.empty()) return;
  if (first.names.empty()) first = own;
  const auto [a, b] = std::ranges::mismatch(own.names, first.names);
  if (a != own.names.end() && b != first.names.end())
    throw FileError(fmt::format("{}: class {} is '{}', but in {} it is '{}'", own.path, a - own.names.begin(),
                                printable(*a), first.path, printable(*b)));
}

/// The file, or the shards in a folder.
std::vector<std::string> shard_files(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return {path};
  std::vector<std::string> out;
  fs::directory_iterator entry(path, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    if (entry->path().extension() == ".shard") out.push_back(entry->path().string());
  if (error) throw FileError(fmt::format("{}: cannot be read: {}", path, error.message()));
  if (out.empty()) throw FileError(fmt::format("{}: holds no file *.shard", path));
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

std::shared_ptr<const ImageDataset> open_shards(const DataOptions& options, Split split) {
  const std::string &path = options.shards, &dataset = options.dataset;
  const char* split_name = split == Split::train ? "train" : "test";
  std::vector<std::unique_ptr<Shard>> shards;
  std::int64_t size = 0;
  NamedClasses first;
  FileErrors errors;
  for (const std::string& file : shard_files(path))
    errors.attempt([&] {
      auto shard = std::make_unique<Shard>(file);
      if (shard->dataset() != dataset)
        throw FileError(
            fmt::format("{}: holds data set {}, but data.dataset is {}", file, shard->dataset(), dataset));
      check_names(*shard, first);
      if (shard->split() != split) return;
      if (!shards.empty() && shard->classes() != shards[0]->classes())
        throw FileError(fmt::format("{}: has {} classes, but {} has {}", file, shard->classes(),
                                    shards[0]->path(), shards[0]->classes()));
      size += shard->size();
      shards.push_back(std::move(shard));
    });
  errors.throw_if_any();
  if (shards.empty())
    throw FileError(fmt::format("{}: holds no shard of split {} (lpsgd data pack --split {} writes one)",
                                path, split_name, split_name));
  return std::make_shared<Shards>(std::move(shards), sample_limit(options, split, size, path),
                                  is_sorted_by_class(dataset));
}

}  // namespace lpsgd
