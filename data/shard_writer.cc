#include <algorithm>

#include "core/checksum.h"
#include "core/error.h"
#include "data/shard_format.h"
#include "data/shards.h"

namespace lpsgd {

namespace {

template <class T>
std::span<const std::uint8_t> bytes_of(const T& value) {
  return {reinterpret_cast<const std::uint8_t*>(&value), sizeof value};
}

void append(std::vector<std::uint8_t>& out, std::span<const std::uint8_t> bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

}  // namespace

ShardWriter::ShardWriter(const std::string& path, ShardInfo info) : info_(std::move(info)), file_(path) {
  require(info_.class_names.empty() || info_.class_names.size() == static_cast<std::size_t>(info_.classes),
          "a shard names all classes, or none");
  require(info_.dataset.size() < shard::Footer{}.dataset.size(), "a data set's name fits in a shard");
  write(bytes_of(shard::Header{}));
}

void ShardWriter::write(std::span<const std::uint8_t> bytes) {
  file_.write(std::as_bytes(bytes));
  at_ += bytes.size();
}

void ShardWriter::align() {
  static constexpr std::array<std::uint8_t, shard::alignment> zeros{};
  write(std::span(zeros).first((shard::alignment - at_ % shard::alignment) % shard::alignment));
}

void ShardWriter::add(const StoredImage& image, std::int32_t label, const std::string& name) {
  align();
  names_ += name;
  shard::Entry entry{.offset = at_,
                     .bytes = image.bytes.size(),
                     .checksum = checksum64(std::as_bytes(image.bytes)),
                     .name_end = names_.size(),
                     .label = label};
  if (image.shape) {
    entry.height = static_cast<std::uint32_t>(image.shape->height);
    entry.width = static_cast<std::uint32_t>(image.shape->width);
    entry.channels = static_cast<std::uint32_t>(image.shape->channels);
  }
  write(image.bytes);
  append(index_, bytes_of(entry));
  ++samples_;
}

void ShardWriter::finish() {
  align();
  for (const std::string& name : info_.class_names) (names_ += name) += '\0';
  shard::Footer footer{.index = at_,
                       .samples = samples_,
                       .names_bytes = names_.size(),
                       .classes = static_cast<std::uint32_t>(info_.classes),
                       .split = info_.split == Split::train ? 0u : 1u};
  std::copy(info_.dataset.begin(), info_.dataset.end(), footer.dataset.begin());
  append(index_, {reinterpret_cast<const std::uint8_t*>(names_.data()), names_.size()});
  append(index_, bytes_of(footer).first(offsetof(shard::Footer, checksum)));
  footer.checksum = checksum64(std::as_bytes(std::span(index_)));
  append(index_, bytes_of(footer).subspan(offsetof(shard::Footer, checksum)));
  write(index_);
  file_.publish();
}

}  // namespace lpsgd
