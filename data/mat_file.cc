// "MAT-File Format", The MathWorks: a header of 128 bytes, then elements. An element has a tag (type, number
// of bytes) and data. A matrix is an element of elements: flags, dimensions, name, values. A struct array has
// the length and the names of its fields, then a matrix for each field of each entry.
#include "data/mat_file.h"

#include <fmt/core.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>

#include "core/error.h"
#include "data/input_file.h"

namespace lpsgd {

namespace {

using Bytes = std::span<const std::uint8_t>;

constexpr std::size_t header_bytes = 128;
constexpr std::uint64_t most_file_bytes = 16 << 20;  // of the file; the original has 26 KB
constexpr std::size_t most_inflated = 64u << 20;     // the original has 1.6 MB
enum Type : std::uint32_t {
  int8 = 1,
  uint8,
  int16,
  uint16,
  int32,
  uint32,
  single,
  float64 = 9,
  matrix = 14,
  compressed,
  utf8
};
enum Class : std::uint8_t { struct_class = 2, char_class = 4, double_class = 6, uint32_class = 13 };

struct Malformed {
  const char* what;
};

struct Element {
  std::uint32_t type = 0;
  Bytes data;
};

template <class T>
T load(Bytes in) {
  if (in.size() < sizeof(T)) throw Malformed{"a value is cut"};
  T value;
  std::memcpy(&value, in.data(), sizeof value);
  return value;
}

/// Takes the next element off `in`. Small ones have their data in the tag.
Element take(Bytes& in) {
  const auto first = load<std::uint32_t>(in);
  if (first >> 16) {
    const std::size_t size = first >> 16;
    if (size > 4 || in.size() < 8) throw Malformed{"a small element is cut"};
    const Element out{first & 0xffff, in.subspan(4, size)};
    in = in.subspan(8);
    return out;
  }
  if (in.size() < 8) throw Malformed{"an element is cut"};
  const std::size_t size = load<std::uint32_t>(in.subspan(4));
  if (size > in.size() - 8) throw Malformed{"truncated"};
  const Element out{first, in.subspan(8, size)};
  const std::size_t padded = first == compressed ? size : (size + 7) / 8 * 8;
  in = in.subspan(8 + std::min(padded, in.size() - 8));
  return out;
}

/// A matrix's flags, dimensions and name; its values follow in `rest`.
struct Matrix {
  std::uint8_t kind = 0;
  std::uint64_t elements = 1;
  std::string_view name;
  Bytes rest;
};

Matrix open_matrix(const Element& element) {
  if (element.type != matrix) throw Malformed{"a matrix is missing"};
  Matrix out;
  out.rest = element.data;
  if (out.rest.empty()) return out;  // an empty field
  out.kind = static_cast<std::uint8_t>(load<std::uint32_t>(take(out.rest).data));
  for (Bytes shape = take(out.rest).data; !shape.empty(); shape = shape.subspan(4)) {
    const auto extent = load<std::uint32_t>(shape);
    if (extent != 0 && out.elements > most_inflated / extent) throw Malformed{"a matrix is too large"};
    out.elements *= extent;
  }
  const Bytes name = take(out.rest).data;
  out.name = {reinterpret_cast<const char*>(name.data()), name.size()};
  return out;
}

/// A matrix of one whole number, which may be stored in a smaller type than its own.
std::int64_t to_integer(Matrix number) {
  if (number.kind < double_class || number.kind > uint32_class || number.elements != 1)
    throw Malformed{"an ILSVRC2012_ID is no number"};
  const Element value = take(number.rest);
  switch (value.type) {
    case int8:
      return load<std::int8_t>(value.data);
    case uint8:
      return load<std::uint8_t>(value.data);
    case int16:
      return load<std::int16_t>(value.data);
    case uint16:
      return load<std::uint16_t>(value.data);
    case int32:
      return load<std::int32_t>(value.data);
    case uint32:
      return load<std::uint32_t>(value.data);
    case float64: {
      const auto real = load<double>(value.data);
      if (real == std::floor(real) && std::fabs(real) < 1e9) return static_cast<std::int64_t>(real);
      break;
    }
    default:
      break;
  }
  throw Malformed{"an ILSVRC2012_ID is no whole number"};
}

std::string to_text(Matrix text) {
  if (text.kind != char_class) throw Malformed{"a WNID is no text"};
  const Element value = take(text.rest);
  std::string out;
  const std::size_t step = value.type == uint16 ? 2 : 1;
  if (value.type != int8 && value.type != uint8 && value.type != utf8 && value.type != uint16)
    throw Malformed{"a WNID is no text"};
  for (std::size_t i = 0; i + step <= value.data.size(); i += step)
    out.push_back(static_cast<char>(value.data[i]));
  return out;
}

std::vector<Synset> read_synsets(Matrix& array) {
  const auto length = load<std::uint32_t>(take(array.rest).data);
  const Bytes names = take(array.rest).data;
  if (length == 0 || names.size() % length != 0) throw Malformed{"the names of fields are cut"};
  const std::size_t fields = names.size() / length;
  constexpr std::size_t none = ~std::size_t{0};
  std::size_t id = none, wnid = none;
  for (std::size_t f = 0; f < fields; ++f) {
    const Bytes field = names.subspan(f * length, length);
    const std::string name(field.begin(), std::find(field.begin(), field.end(), std::uint8_t{0}));
    if (name == "ILSVRC2012_ID") id = f;
    if (name == "WNID") wnid = f;
  }
  if (id == none || wnid == none) throw Malformed{"`synsets` has no fields ILSVRC2012_ID and WNID"};
  std::vector<Synset> out;
  for (std::uint64_t i = 0; i < array.elements; ++i) {
    Synset& synset = out.emplace_back();
    for (std::size_t f = 0; f < fields; ++f) {
      const Element value = take(array.rest);
      if (f == id) synset.id = to_integer(open_matrix(value));
      if (f == wnid) synset.wnid = to_text(open_matrix(value));
    }
  }
  return out;
}

std::vector<std::uint8_t> inflate_element(Bytes in) {
  std::vector<std::uint8_t> out(std::min(most_inflated, 16 * in.size() + 4096));
  z_stream stream{};
  if (::inflateInit(&stream) != Z_OK) throw Malformed{"out of memory"};
  stream.next_in = const_cast<std::uint8_t*>(in.data());
  stream.avail_in = static_cast<unsigned>(in.size());
  int status = Z_OK;
  while (status == Z_OK) {
    if (stream.total_out == out.size()) {
      if (out.size() == most_inflated) break;
      out.resize(std::min(most_inflated, 2 * out.size()));
    }
    stream.next_out = out.data() + stream.total_out;
    stream.avail_out = static_cast<unsigned>(out.size() - stream.total_out);
    status = ::inflate(&stream, Z_NO_FLUSH);
  }
  out.resize(stream.total_out);
  ::inflateEnd(&stream);
  if (status != Z_STREAM_END) throw Malformed{"a compressed element is damaged"};
  return out;
}

std::vector<Synset> find_synsets(Bytes in) {
  in = in.subspan(header_bytes);
  std::vector<std::uint8_t> inflated;
  while (!in.empty()) {
    Element element = take(in);
    if (element.type == compressed) {
      inflated = inflate_element(element.data);
      Bytes inner = inflated;
      element = take(inner);
    }
    if (element.type != matrix) continue;
    Matrix array = open_matrix(element);
    if (array.name == "synsets" && array.kind == struct_class) return read_synsets(array);
  }
  throw Malformed{"there is no struct array `synsets`"};
}

}  // namespace

std::vector<Synset> parse_meta_mat(std::span<const std::uint8_t> bytes, const std::string& path) {
  const bool is_mat = bytes.size() >= header_bytes && load<std::uint16_t>(bytes.subspan(124)) == 0x0100 &&
                      bytes[126] == 'I' && bytes[127] == 'M';
  if (!is_mat)
    throw FileError(fmt::format("{}: no MATLAB 5 file, expected that of ImageNet's development kit", path));
  try {
    return find_synsets(bytes);
  } catch (const Malformed& e) {
    throw FileError(fmt::format("{}: malformed MATLAB file: {}", path, e.what));
  }
}

std::vector<Synset> read_meta_mat(const std::string& path) {
  std::vector<std::uint8_t> bytes;
  read_whole_file(path, most_file_bytes, bytes);
  return parse_meta_mat(bytes, path);
}

}  // namespace lpsgd
