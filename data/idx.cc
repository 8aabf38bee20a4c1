#include "data/idx.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "core/error.h"
#include "data/input_file.h"

namespace lpsgd {

namespace {

constexpr std::uint8_t unsigned_byte = 8;         // the type of the values
constexpr std::int64_t most_records = 1'000'000;  // MNIST has 60,000
constexpr std::uint64_t most_compressed =
    1100;  // bytes that a byte of a gzip file may stand for: 1032 or fewer

/// zlib's reader, which passes on what is not gzip.
class GzipReader {
 public:
  explicit GzipReader(const std::string& path) : path_(path) {
    const InputFile file(path);  // for its errors
    size_ = file.size();
    if (size_ == 0) throw FileError(fmt::format("{}: empty, expected an IDX file", path));
    const int descriptor = ::dup(file.descriptor());
    file_.reset(descriptor < 0 ? nullptr : ::gzdopen(descriptor, "rb"));
    if (!file_) throw FileError(fmt::format("{}: cannot be read: out of memory", path));
    ::gzbuffer(file_.get(), 1 << 17);
  }

  std::uint64_t file_size() const { return size_; }
  /// Of what the file may hold. To be called after the first read().
  std::uint64_t max_size() const { return ::gzdirect(file_.get()) ? size_ : size_ * most_compressed; }

  /// As many bytes as there are, `out.size()` at most.
  std::size_t read(std::span<std::uint8_t> out) {
    std::size_t done = 0;
    while (done < out.size()) {
      const auto part = static_cast<unsigned>(std::min<std::size_t>(out.size() - done, 1 << 30));
      const int got = ::gzread(file_.get(), out.data() + done, part);
      if (got > 0) done += static_cast<std::size_t>(got);
      if (got == static_cast<int>(part)) continue;
      int error = Z_OK;
      const char* text = ::gzerror(file_.get(), &error);
      if (error == Z_BUF_ERROR) throw FileError(fmt::format("{}: truncated gzip file", path_));
      if (error != Z_OK) throw FileError(fmt::format("{}: damaged gzip file: {}", path_, text));
      break;
    }
    return done;
  }

 private:
  struct Close {
    void operator()(gzFile_s* file) const { ::gzclose(file); }
  };
  const std::string& path_;
  std::uint64_t size_ = 0;
  std::unique_ptr<gzFile_s, Close> file_;
};

std::uint32_t big_endian(const std::uint8_t* in) {
  return std::uint32_t{in[0]} << 24 | std::uint32_t{in[1]} << 16 | std::uint32_t{in[2]} << 8 | in[3];
}

/// Reads the header, and returns the number of records: values of `shape`.
std::int64_t read_header(GzipReader& in, const std::string& path, std::span<const std::int64_t> shape,
                         const char* what) {
  std::vector<std::uint8_t> header(8 + 4 * shape.size());
  const std::size_t got = in.read(header);
  const auto magic = [](const std::uint8_t* m) {
    return fmt::format("{:02x}{:02x}{:02x}{:02x}", m[0], m[1], m[2], m[3]);
  };
  const std::array<std::uint8_t, 4> expected{0, 0, unsigned_byte,
                                             static_cast<std::uint8_t>(1 + shape.size())};
  if (got >= 4 && !std::equal(expected.begin(), expected.end(), header.begin()))
    throw FileError(fmt::format("{}: no IDX file of {}: magic number {}, expected {}", path, what,
                                magic(header.data()), magic(expected.data())));
  if (got < header.size())
    throw FileError(
        fmt::format("{}: truncated IDX file: {} bytes, the header has {}", path, got, header.size()));
  std::vector<std::uint32_t> dimensions(1 + shape.size());
  for (std::size_t i = 0; i < dimensions.size(); ++i) dimensions[i] = big_endian(header.data() + 4 + 4 * i);
  if (!std::equal(shape.begin(), shape.end(), dimensions.begin() + 1))
    throw FileError(fmt::format("{}: {} of {}, expected {}", path, what,
                                fmt::join(dimensions.begin() + 1, dimensions.end(), " x "),
                                fmt::join(shape, " x ")));
  if (dimensions[0] == 0 || dimensions[0] > most_records)
    throw FileError(fmt::format("{}: {} {}, expected 1 to {}", path, dimensions[0], what, most_records));
  return dimensions[0];
}

}  // namespace

Buffer<std::uint8_t> read_idx(const std::string& path, std::span<const std::int64_t> shape,
                              const char* what) {
  GzipReader in(path);
  std::size_t size = static_cast<std::size_t>(read_header(in, path, shape, what));
  for (const std::int64_t extent : shape) size *= static_cast<std::size_t>(extent);
  if (size > in.max_size())
    throw FileError(
        fmt::format("{}: truncated IDX file: {} bytes cannot hold the {} bytes of {} that its header says",
                    path, in.file_size(), size, what));
  Buffer<std::uint8_t> values(size);
  const std::size_t got = in.read(values.view());
  if (got < size)
    throw FileError(
        fmt::format("{}: truncated IDX file: {} bytes of {}, its header says {}", path, got, what, size));
  std::uint8_t more = 0;  // reading on also checks the checksum at gzip's end
  if (in.read({&more, 1}) != 0)
    throw FileError(
        fmt::format("{}: holds more than the {} bytes of {} that its header says", path, size, what));
  return values;
}

}  // namespace lpsgd
