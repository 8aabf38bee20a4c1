#include "core/safetensors.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "core/checksum.h"
#include "core/data_type.h"
#include "core/error.h"
#include "core/file.h"
#include "core/fp16.h"
#include "core/json.h"
#include "core/printable.h"

namespace lpsgd {

static_assert(std::endian::native == std::endian::little, "safetensors data is used as it is mapped");

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::uint64_t max_header = 100'000'000;  // the format's own limit
constexpr std::size_t max_tensors = 50'000;        // with the metadata; of both, to write what can be read

/// How a tensor's values are stored.
enum class Stored : std::uint8_t { f32, f16, bf16, counter };

constexpr std::uint64_t size_of(Stored stored) {
  return stored == Stored::counter ? 8 : stored == Stored::f32 ? 4 : 2;
}

struct Entry {
  StoredTensor tensor;
  Stored stored = Stored::f32;
  std::uint64_t begin = 0, end = 0;  // of its bytes, from the end of the header
};

[[noreturn]] void malformed(const std::string& path, const std::string& what) {
  throw FileError(fmt::format("{}: not a valid safetensors file: {}", path, printable(what)));
}

json parse_header(const std::string& path, std::string_view text) {
  constexpr JsonBounds bounds{.depth = 8, .values = 20 * max_tensors, .object_keys = max_tensors};
  json header =
      parse_json<json>(text, fmt::format("{}: not a valid safetensors file: the header", path), bounds);
  if (!header.is_object()) malformed(path, "the header is not an object");
  return header;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string out = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) out += fmt::format("{}{}", i ? ", " : "", shape[i]);
  return out + ")";
}

/// The product of a shape, or nothing when it does not fit.
bool product(const std::vector<std::int64_t>& shape, std::uint64_t& out) {
  out = 1;
  for (const std::int64_t d : shape)
    if (__builtin_mul_overflow(out, static_cast<std::uint64_t>(d), &out)) return false;
  return out <= (std::uint64_t{1} << 61);
}

Stored stored_of(const std::string& path, const std::string& name, const std::string& dtype) {
  if (dtype == "F32") return Stored::f32;
  if (dtype == "F16") return Stored::f16;
  if (dtype == "BF16") return Stored::bf16;
  if (dtype == "I64" && name.ends_with("num_batches_tracked")) return Stored::counter;
  throw FileError(
      fmt::format("{}: tensor '{}' is {}; F32, F16 and BF16 are read (in PyTorch: tensor.float())", path,
                  printable(name), printable(dtype)));
}

bool are_numbers(const json& list) {
  return list.is_array() && std::ranges::all_of(list, [](const auto& x) {
           return x.is_number_unsigned() && x.template get<std::uint64_t>() <= (std::uint64_t{1} << 61);
         });
}

Entry parse_entry(const std::string& path, const std::string& name, const json& entry,
                  std::uint64_t data_bytes) {
  const auto field = [&](const char* key, bool right) {
    if (!right) malformed(path, fmt::format("tensor '{}' has no proper '{}'", name, key));
  };
  field("entry", entry.is_object());
  field("dtype", entry.contains("dtype") && entry["dtype"].is_string());
  Entry out;
  out.stored = stored_of(path, name, entry["dtype"].get<std::string>());
  field("shape", entry.contains("shape") && are_numbers(entry["shape"]));
  field("data_offsets", entry.contains("data_offsets") && are_numbers(entry["data_offsets"]) &&
                            entry["data_offsets"].size() == 2);
  out.tensor = {name, entry["shape"].get<std::vector<std::int64_t>>(), {}};
  out.begin = entry["data_offsets"][0].get<std::uint64_t>();
  out.end = entry["data_offsets"][1].get<std::uint64_t>();
  std::uint64_t elements = 0;
  if (out.begin > out.end || out.end > data_bytes)
    malformed(path,
              fmt::format("tensor '{}' lies at bytes {} to {} of {}", name, out.begin, out.end, data_bytes));
  if (!product(out.tensor.shape, elements) || elements * size_of(out.stored) != out.end - out.begin)
    malformed(path, fmt::format("tensor '{}' of shape {} does not fit its {} bytes", name,
                                shape_text(out.tensor.shape), out.end - out.begin));
  return out;
}

/// The entries must cover the data without holes, in their order.
void check_cover(const std::string& path, const std::vector<Entry>& entries, std::uint64_t data_bytes) {
  std::uint64_t covered = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != covered)
      malformed(path, entry.begin < covered ? "tensors overlap" : "there is a hole between tensors");
    covered = entry.end;
  }
  if (covered != data_bytes)
    malformed(path, fmt::format("its tensors cover {} of {} bytes", covered, data_bytes));
}

/// Values of a type at any address, as float32.
template <class T>
std::vector<float> widened(const std::byte* bytes, std::uint64_t elements) {
  std::vector<float> out(elements);
  for (float& value : out) {
    T stored;
    std::memcpy(&stored, bytes, sizeof(stored));
    bytes += sizeof(stored);
    value = widen(stored);
  }
  return out;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  const auto [fd, size] = open_regular_file(path);
  bytes_ = size;
  if (bytes_ < 8) {
    ::close(fd);
    malformed(path, fmt::format("{} bytes are too few for a header", bytes_));
  }
  map_ = ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, fd, 0);
  const int error = errno;
  ::close(fd);
  if (map_ == MAP_FAILED) {
    map_ = nullptr;
    throw FileError(fmt::format("{}: cannot be mapped: {}", path, std::generic_category().message(error)));
  }
  try {
    const auto* base = static_cast<const std::byte*>(map_);
    std::uint64_t length = 0;
    std::memcpy(&length, base, 8);
    if (length > max_header || length > bytes_ - 8)
      malformed(path,
                fmt::format("its header of {} bytes goes past the end ({} bytes in all)", length, bytes_));
    const std::uint64_t data_bytes = bytes_ - 8 - length;
    const std::byte* const data = base + 8 + length;
    const json header = parse_header(path, {reinterpret_cast<const char*>(base + 8), length});

    std::vector<Entry> entries;
    for (const auto& [name, entry] : header.items()) {
      if (name != "__metadata__") {
        entries.push_back(parse_entry(path, name, entry, data_bytes));
        continue;
      }
      if (!entry.is_object()) malformed(path, "__metadata__ is not an object");
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) malformed(path, fmt::format("__metadata__.{} is not a string", key));
        metadata_[key] = value.get<std::string>();
      }
    }
    std::ranges::stable_sort(entries, {}, [](const Entry& e) { return std::pair(e.begin, e.end); });
    check_cover(path, entries, data_bytes);
    for (Entry& entry : entries) {
      if (entry.stored == Stored::counter) continue;
      const std::uint64_t elements = (entry.end - entry.begin) / size_of(entry.stored);
      const std::byte* const from = data + entry.begin;
      if (entry.stored == Stored::f16)
        entry.tensor.values = copies_.emplace_back(widened<Fp16>(from, elements));
      else if (entry.stored == Stored::bf16)
        entry.tensor.values = copies_.emplace_back(widened<Bf16>(from, elements));
      else if (reinterpret_cast<std::uintptr_t>(from) % alignof(float) != 0)  // of a writer that does not pad
        entry.tensor.values = copies_.emplace_back(widened<float>(from, elements));
      else
        entry.tensor.values = {reinterpret_cast<const float*>(from), elements};
      tensors_.push_back(std::move(entry.tensor));
    }
    for (std::size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
  } catch (...) {
    ::munmap(map_, bytes_);
    throw;
  }
}

SafetensorsFile::~SafetensorsFile() {
  if (map_) ::munmap(map_, bytes_);
}

const StoredTensor* SafetensorsFile::find(const std::string& name) const {
  const auto at = index_.find(name);
  return at == index_.end() ? nullptr : &tensors_[at->second];
}

const StoredTensor& SafetensorsFile::at(const std::string& name,
                                        const std::vector<std::int64_t>& shape) const {
  const StoredTensor* tensor = find(name);
  if (!tensor) throw FileError(fmt::format("{}: has no tensor '{}'", path_, name));
  if (tensor->shape != shape)
    throw FileError(fmt::format("{}: tensor '{}' has shape {}, expected {}", path_, name,
                                shape_text(tensor->shape), shape_text(shape)));
  return *tensor;
}

std::string write_safetensors(const std::string& path, const std::vector<StoredTensor>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  ordered_json header = ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  std::unordered_set<std::string_view> names;
  for (const StoredTensor& tensor : tensors) {
    std::uint64_t elements = 0;
    require(product(tensor.shape, elements) && elements == tensor.values.size(),
            "a stored tensor's shape and values differ");
    require(names.insert(tensor.name).second, "two stored tensors have one name");
    // operator[] would look through all keys before.
    header.get_ref<ordered_json::object_t&>().emplace_back(
        tensor.name,
        ordered_json{
            {"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + elements * 4}}});
    offset += elements * 4;
  }
  if (header.size() > max_tensors)
    throw FileError(fmt::format("{}: {} tensors, expected {} or fewer", path, tensors.size(), max_tensors));
  std::string text = header.dump();
  if (text.size() > max_header - 8)
    throw FileError(
        fmt::format("{}: a header of {} bytes, expected {} or fewer", path, text.size(), max_header));
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t length = text.size();
  std::vector<std::span<const std::byte>> pieces{std::as_bytes(std::span(&length, 1)),
                                                 std::as_bytes(std::span(text))};
  for (const StoredTensor& tensor : tensors) pieces.push_back(std::as_bytes(tensor.values));
  write_file(path, pieces);
  ChecksumStream sum;
  for (const std::span<const std::byte> piece : pieces) sum.add(piece);
  return sum.text();
}

}  // namespace lpsgd
